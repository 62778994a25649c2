from dataclasses import replace

import pytest

import sfedhp
from sfedhp.data import DataOptions
from sfedhp.paper.campaign import run_studies
from sfedhp.paper.jobs import Effort
from sfedhp.paper.newcomers import NEWCOMER_ROWS, score_newcomers
from sfedhp.paper.records import read_records
from sfedhp.paper.rows import rows
from tests.support.small_experiments import experiment


@pytest.fixture
def joining():
    return replace(experiment(rounds=3, edge_rounds=3), data=DataOptions(held_out=1))


def test_a_newcomer_gains_by_steps_of_its_own(joining):
    run = sfedhp.run(joining)
    found = score_newcomers(run)
    assert set(found) == set(NEWCOMER_ROWS)
    assert found["global_own"] > found["global"] + 10
    # The best-fitting of several models, the global one among them, is chosen on training rows.
    assert found["best"] >= found["global"]


def test_where_no_one_is_held_out_there_are_no_newcomers():
    assert score_newcomers(sfedhp.run(experiment(rounds=1, edge_rounds=1))) == {}


def test_newcomers_have_rows_of_their_own(study, joining, tmp_path):
    extra = study("table2-extras", paper=False, joins=[joining])
    run_studies([extra], tmp_path, Effort(seeds=2, device="cpu"))
    found = rows([extra], read_records(tmp_path, ["table2-extras"]))
    mine = {row.variant: row for row in found if "newcomer" in row.variant}
    assert len(mine) == 4
    row = mine["joins: newcomer, global model as is"]
    assert (row.kind, row.paper, row.seeds, row.lam) == ("gm", None, 2, 20.0)
    assert row.ours_last == pytest.approx(sum(row.last.values()) / 2)

from dataclasses import replace

import pytest

import sfedhp
from sfedhp.data import DataOptions
from sfedhp.paper import campaign, newcomers, records
from sfedhp.paper.rows import rows
from sfedhp.paper.studies import Effort
from tests.support.small_experiments import experiment


@pytest.fixture
def joining():
    return replace(experiment(rounds=3, edge_rounds=3), data=DataOptions(held_out=1))


def test_a_newcomer_gains_by_steps_of_its_own(joining):
    run = sfedhp.run(joining)
    found = newcomers.scores(run)
    assert set(found) == set(newcomers.MEASURED)
    assert found["global_own"] > found["global"] + 10
    # The best-fitting of several models, the global one among them, is chosen on training rows.
    assert found["best"] >= found["global"]


def test_where_nobody_is_held_out_there_are_no_newcomers():
    assert newcomers.scores(sfedhp.run(experiment(rounds=1, edge_rounds=1))) == {}


def test_newcomers_have_rows_of_their_own(study, joining, tmp_path):
    extra = study("table2-extras", paper=False, joins=[joining])
    campaign.run([extra], Effort(seeds=2, device="cpu"), tmp_path)
    found = rows([extra], records.read(tmp_path, ["table2-extras"]))
    mine = {row.variant: row for row in found if "newcomer" in row.variant}
    assert len(mine) == 4
    row = mine["joins: newcomer, global model as is"]
    assert (row.metric, row.paper, row.seeds, row.lam) == ("gm", None, 2, 20.0)
    assert row.ours_last == pytest.approx(sum(row.last.values()) / 2)

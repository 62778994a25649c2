from dataclasses import replace

import pytest

from sfedhp.paper.distant_cells import distant_cells
from sfedhp.paper.rows import final_records, row_to_dict, rows, table1_rows
from sfedhp.paper.tables import agreement, text_tables
from tests.support.small_experiments import experiment


@pytest.fixture
def sfedhp(study):
    return study(sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)])


def test_last_validated_and_best_are_three_things(sfedhp, made):
    records = [
        made(
            sfedhp,
            "sfedhp",
            seed,
            pm=[90.0 + seed, 99.0, 95.0 + seed],
            gm=[80.0, 85.0 + seed, 84.0],
            pm_validation=[99.0, 1.0, 2.0],
            gm_validation=[1.0, 2.0, 3.0],
        )
        for seed in range(3)
    ]
    pm, gm = rows([sfedhp], records)
    assert (pm.ours_last, pm.ours_validated, pm.ours_best) == (96.0, 91.0, 99.0)
    assert (pm.sd, pm.sd_validated, pm.sd_best) == (1.0, 1.0, 0.0)
    assert (gm.ours_last, gm.ours_validated, gm.ours_best) == (84.0, 84.0, 86.0)
    assert gm.last == {0: 84.0, 1: 84.0, 2: 84.0}
    assert (pm.paper, gm.paper) == (97.83, 94.93)
    assert gm.gap == pytest.approx(86 - 94.93)
    assert pm.seeds == 3
    assert row_to_dict(pm)["ours_best"] == 99.0
    assert table1_rows([pm, gm]) == [gm]


def test_statistics_of_batch_norm_are_two_readings_and_one_is_the_papers(study, made):
    cifar = study("table6", table="table6", fedavg=[experiment("fedavg")])
    record = made(
        cifar,
        "fedavg",
        0,
        statistics="local",
        gm=[40.0],
        gm_local=[40.0],
        gm_averaged=[30.0],
        gm_validation=[50.0],
        gm_averaged_validation=[20.0],
    )
    local, averaged = rows([cifar], [record])
    assert (local.reading, local.statistics) == ("balanced", "local")
    assert (local.paper, local.ours_validated) == (42.36, 40.0)
    assert (averaged.statistics, averaged.paper, averaged.ours_last) == ("averaged", None, 30.0)
    assert local.sd is None
    titles = [sheet.title for sheet in text_tables([local, averaged], ["table6"])]
    assert titles == ["Table 6: CIFAR-10, Setting 1, balanced"]


def test_extras_have_no_number_of_the_paper(study, made):
    extra = study("table2-extras", paper=False, fedavg=[experiment("fedavg", local_steps=100)])
    (row,) = rows([extra], [made(extra, "fedavg", 0, gm=[90.0])])
    assert row.paper is None
    assert row.gap is None
    assert row.ours_validated is None
    assert table1_rows([row]) == []


def test_trials_are_not_results(study, made):
    tried = study(meta=[experiment("perfedavg", meta_rate=rate) for rate in (0.001, 0.01)])
    trials = [made(tried, "meta", 0, point=point, rounds=200, pm=[50.0]) for point in range(2)]
    assert final_records(tried, "meta", trials) == []
    assert rows([tried], trials) == []
    final = made(tried, "meta", 0, point=1, pm=[60.0])
    assert final_records(tried, "meta", [*trials, final]) == [final]


def test_how_many_cells_are_near_and_which_are_far(sfedhp, made):
    found = rows([sfedhp], [made(sfedhp, "sfedhp", 0, pm=[97.0], gm=[98.0, 90.0])])
    everybody, own, *others = agreement(found)
    assert everybody == (
        "balanced, tables 2–5, all methods: 1 of 2 cells (50 %) are within 2.5 points of the paper by the "
        "best round, 1 (50 %) by the last; 106 of 108 cells are not run yet."
    )
    assert own.startswith("balanced, tables 2–5, sFedHP: 1 of 2")
    assert others == [
        "balanced, tables 6–7, all methods: 54 of 54 cells are not run yet.",
        "balanced, tables 6–7, sFedHP: 20 of 20 cells are not run yet.",
    ]
    words = "our curve passes the paper's number at round 20"
    assert distant_cells(found).lines == (("MNIST S1 sfedhp GM", "94.93", "98.00", "+3.07", words),)


def test_the_text_s_own_reading_is_counted_by_itself(study, made):
    written = study("table2-as-written", reading="as-written", fedavg=[experiment("fedavg")])
    found = rows([written], [made(written, "fedavg", 0, gm=[96.0, 92.0])])
    line = agreement(found)[4]
    assert line.startswith("as-written, tables 2–5, all methods: 0 of 1 cells (0 %) are within 2.5 points")
    assert "of the paper by the best round, 1 (100 %) by the last" in line
    assert not distant_cells(found).lines
    assert distant_cells(found, "as-written").lines


def test_a_cell_that_is_far_says_when_it_was_reached_and_what_is_known(study, made):
    collapse = study(pfedme=[experiment("pfedme", client_proximity=30.0)])
    runs = [made(collapse, "pfedme", seed, gm=[10.0 * seed, 10.2, 12.0]) for seed in (0, 2)]
    assert [row.reached for row in rows([collapse], runs)] == [60]
    runs = [made(collapse, "pfedme", seed, gm=[99.0, 99.0], pm=[20.0, 30.0]) for seed in (0, 2)]
    personal, common = distant_cells(rows([collapse], runs)).lines
    assert personal[-1].startswith(
        "not reached in 800 rounds, though no other row is above ours; the paper's run"
    )
    assert common[-1].startswith("our curve passes the paper's number at round 20; ")


def test_two_kinds_of_statistics_are_explained(sfedhp, made):
    record = made(sfedhp, "sfedhp", 0, statistics="local", gm_local=[50.0], gm_averaged=[40.0])
    (detail,) = text_tables(rows([sfedhp], [record]), ["table2"])
    assert "one model for all clients" in detail.note
    assert [line[0] for line in detail.lines] == ["sfedhp GM (local)", "sfedhp GM (averaged)"]


def test_a_value_that_is_missing_is_no_accuracy_and_a_divergence_is_told(sfedhp, made):
    record = made(sfedhp, "sfedhp", 0, trouble="diverged", gm=[50.0, None], gm_validation=[10.0, None])
    (row,) = rows([sfedhp], [record])
    assert (row.ours_last, row.ours_best, row.diverged) == (0.0, 50.0, 1)
    (detail,) = text_tables([row], ["table2"])
    assert detail.lines[0][-1] == "1, 1 diverged"


def test_a_run_that_diverged_before_its_first_evaluation_is_shown(sfedhp, made):
    ended = replace(made(sfedhp, "sfedhp", 0, trouble="diverged", gm=[]), curve={})
    whole = made(sfedhp, "sfedhp", 1, pm=[90.0], gm=[80.0])
    (row,) = rows([sfedhp], [ended, replace(ended, seed=1)])
    assert (row.metric, row.ours_last, row.ours_validated, row.reached) == ("gm", 0.0, None, None)
    assert row.diverged == 2
    assert text_tables([row], ["table2"])[0].lines[0][2:] == ("–", "–", "–", "–", "2, 2 diverged")
    assert (row_to_dict(row)["ours_last"], row_to_dict(row)["gap"]) == (None, None)
    personal, common = rows([sfedhp], [ended, whole])
    assert (personal.last, common.last) == ({0: 0.0, 1: 90.0}, {0: 0.0, 1: 80.0})
    assert common.diverged == 1


def test_what_is_not_run_is_not_shown():
    assert text_tables([], ["table1", "table2", "fig2"]) == []

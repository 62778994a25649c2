from dataclasses import replace

import pytest

from sfedhp.paper.distant_cells import distant_cells
from sfedhp.paper.rows import final_records, row_to_dict, rows, table1_rows
from sfedhp.paper.tables import text_tables
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
    assert pm.tail == pytest.approx({seed: (284 + 2 * seed) / 3 for seed in range(3)})
    assert (pm.ours_tail, pm.sd_tail) == pytest.approx((286 / 3, 2 / 3))
    assert pm.ci == pytest.approx(4.302653 * 2 / 3 / 3**0.5)
    assert pm.validation == pytest.approx(34)
    assert (pm.paper, gm.paper) == (97.83, 94.93)
    assert gm.gap == pytest.approx(86 - 94.93)
    assert pm.seeds == 3
    assert row_to_dict(pm)["ours_best"] == 99.0
    # Scripts read `metric`.
    assert (row_to_dict(pm)["metric"], "kind" in row_to_dict(pm), pm.kind) == ("pm", False, "pm")
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


def test_a_cell_that_is_far_says_when_it_was_reached_and_what_is_known(study, made):
    collapse = study(pfedme=[experiment("pfedme", client_proximity=30.0)])
    runs = [made(collapse, "pfedme", seed, gm=[10.0 * seed, 10.2, 12.0]) for seed in (0, 2)]
    assert [row.reached for row in rows([collapse], runs)] == [60]
    runs = [made(collapse, "pfedme", seed, gm=[99.0, 99.0], pm=[20.0, 30.0]) for seed in (0, 2)]
    personal, common = distant_cells(rows([collapse], runs)).lines
    assert personal[-1].startswith("not reached in 800 rounds; no other row is better; the paper's run")
    assert common[-1].startswith("our curve passes the paper's number at round 20; ")


def test_two_kinds_of_statistics_are_explained(sfedhp, made):
    record = made(sfedhp, "sfedhp", 0, statistics="local", gm_local=[50.0], gm_averaged=[40.0])
    (detail,) = text_tables(rows([sfedhp], [record]), ["table2"], whole=False)
    assert "one model for all clients" in detail.note
    assert [line[0] for line in detail.lines] == ["sFedHP GM (local)", "sFedHP GM (averaged)"]


def test_a_value_that_is_missing_is_no_accuracy_and_a_divergence_is_reported(sfedhp, made):
    record = made(sfedhp, "sfedhp", 0, trouble="diverged", gm=[50.0, None], gm_validation=[10.0, None])
    (row,) = rows([sfedhp], [record])
    assert (row.ours_last, row.ours_best, row.diverged) == (0.0, 50.0, 1)
    (detail,) = text_tables([row], ["table2"], whole=False)
    assert detail.lines[0][-2] == "1, 1 diverged"


def test_a_run_that_diverged_before_its_first_evaluation_is_shown(sfedhp, made):
    ended = replace(made(sfedhp, "sfedhp", 0, trouble="diverged", gm=[]), curve={})
    whole = made(sfedhp, "sfedhp", 1, pm=[90.0], gm=[80.0])
    (row,) = rows([sfedhp], [ended, replace(ended, seed=1)])
    assert (row.kind, row.ours_last, row.ours_validated, row.reached) == ("gm", 0.0, None, None)
    assert row.diverged == 2
    (detail,) = text_tables([row], ["table2"], whole=False)
    assert detail.lines[0][2:] == ("–", "–", "–", "–", "–", "2, 2 diverged", "–")
    assert (row_to_dict(row)["ours_last"], row_to_dict(row)["gap"]) == (None, None)
    personal, common = rows([sfedhp], [ended, whole])
    assert (personal.last, common.last) == ({0: 0.0, 1: 90.0}, {0: 0.0, 1: 80.0})
    assert common.diverged == 1


def test_of_a_table_without_any_run_nothing_is_shown():
    assert text_tables([], ["table1", "table2", "fig2"]) == []


def test_cells_of_the_paper_that_were_not_run_are_shown_as_such(study, made):
    other = study("table2-neighbouring", reading="neighbouring", fedavg=[experiment("fedavg")])
    main = study(fedavg=[experiment("fedavg")], hierfavg=[experiment("hierfavg")])
    records = [made(other, "fedavg", seed, gm=[90.0 + seed]) for seed in range(3)]
    records += [made(main, "hierfavg", seed, gm=[10.0] + 5 * [92.0 + seed]) for seed in range(3)]
    overview, beside, detail, contrast = text_tables(rows([main, other], records), ["table1", "table2"])
    assert overview.heads[-1] == "neighbouring"
    assert len(overview.lines) == 30
    assert overview.lines[0] == ("MNIST S1 FedAvg", "91.63 ± 0.12", "not run yet", *4 * "–", "0", "91.00")
    # The mean of the last five, and the 95 % interval of three seeds one apart: 4.303/√3.
    assert overview.lines[1][:4] == ("MNIST S1 HierFAVG", "93.22 ± 0.03", "93.00 ± 2.48", "93.00")
    assert len(detail.lines) == 27
    assert detail.lines[0] == ("FedAvg GM", "91.63", "not run yet", *4 * "–", "0", "91.00")
    assert detail.lines[-1][:3] == ("sFedHP λ=30 GM", "95.63", "not run yet")
    # Of the other readings only what was run.
    assert [len(table.lines) for table in (beside, contrast)] == [1, 1]
    assert text_tables(rows([main, other], records), ["table2"], whole=False)[0].lines == (detail.lines[1],)

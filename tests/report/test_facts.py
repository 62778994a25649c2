"""What a page says of folders: grouping by setting, names, means over seeds, changed keys."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from sfedhp import DataOptions, Experiment, FedAvg, SFedHP
from sfedhp.core.errors import InputError
from sfedhp.report.facts import estimate, read_facts, varying_keys
from tests.support.json_lines import json_lines
from tests.support.run_folders import write_run


def test_runs_that_differ_only_in_their_seeds_are_one_setting(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path / f"a-{seed}", seed=seed)
        write_run(tmp_path / f"b-{seed}", seed=seed, experiment=Experiment(algorithm=SFedHP(edge_rounds=7)))
    facts = read_facts([tmp_path])
    assert [group.name for group in facts.groups] == ["edge_rounds=20", "edge_rounds=7"]
    assert [group.seeds for group in facts.groups] == [[0, 1, 2], [0, 1, 2]]
    assert facts.sentence == "6 runs of 2 settings: sfedhp on fmnist-mini, 4 rounds, 3 seeds."


def test_a_file_is_named_without_the_folders_of_the_machine(tmp_path):
    data = DataOptions(source=str(tmp_path / "own.csv"), target="y")
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed=seed, experiment=Experiment(data=data))
    assert read_facts([tmp_path]).sentence == "2 runs: sfedhp on own.csv, 4 rounds, 2 seeds."
    assert read_facts([tmp_path / "1"]).sentence.startswith("sfedhp on own.csv: 2 edges")


def test_a_mean_over_seeds_is_that_of_the_histories(tmp_path):
    folders = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1, 2)]
    (group,) = read_facts([tmp_path]).groups
    rows = [json_lines(each / "history.jsonl") for each in folders]
    curve = group.curve("em", "EM", 1)
    assert curve is not None
    assert curve.deviations is not None
    assert list(curve.x) == [1, 2, 3, 4]
    for turn in range(4):
        values = [run[turn]["em"] for run in rows]
        assert curve.y[turn] == pytest.approx(statistics.fmean(values))
        assert curve.deviations[turn] == pytest.approx(statistics.stdev(values))
    final = group.estimate("pm_last")
    assert final is not None
    assert final.text() == f"{final.mean:.2f} ± {final.deviation:.2f}"
    assert group.estimate("pm_validated") is None  # there were no validation rows
    assert group.curve("nothing", "", 0) is None


def test_a_seed_that_stopped_early_cuts_the_mean_short(tmp_path):
    write_run(tmp_path / "0", seed=0)
    other = write_run(tmp_path / "1", seed=1)
    lines = (other / "history.jsonl").read_text().splitlines()
    (other / "history.jsonl").write_text("\n".join(lines[:2]) + "\n")
    facts = read_facts([tmp_path])
    curve = facts.groups[0].curve("pm", "PM", 0)
    assert curve is not None
    assert list(curve.x) == [1, 2]
    assert facts.sentence.endswith("1 finished.")


def test_methods_are_named_alone_where_nothing_else_differs_within_one(tmp_path):
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", experiment=Experiment(algorithm=FedAvg()))
    assert [group.name for group in read_facts([tmp_path]).groups] == ["sfedhp", "fedavg"]


def test_the_same_run_twice_is_shown_twice(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name)
    assert [group.name for group in read_facts([tmp_path]).groups] == ["sfedhp (one)", "sfedhp (two)"]


def test_changed_keys_are_those_that_are_not_at_their_defaults(tmp_path):
    experiment = replace(Experiment(algorithm=SFedHP(edge_rounds=7)), batch_size=5)
    folder = write_run(tmp_path / "one", edges=4, per_edge=5, experiment=experiment)
    (run,) = read_facts([folder]).runs
    assert run.changed == {"rounds": 4, "batch_size": 5, "algorithm.edge_rounds": 7}
    other = write_run(tmp_path / "two", edges=4, per_edge=5, seed=3)
    assert varying_keys(read_facts([folder, other]).runs) == ["batch_size", "algorithm.edge_rounds"]


def test_a_kit_and_the_folder_of_kits_stand_for_the_run_of_the_cloud(tmp_path):
    write_run(tmp_path / "kits/cloud/run")
    (tmp_path / "kits/cloud/sfedhp.json").write_text("{}")
    (tmp_path / "kits/edge-0").mkdir()
    (tmp_path / "kits/edge-0/sfedhp.json").write_text("{}")
    for named in ("kits", "kits/cloud", "kits/cloud/run"):
        facts = read_facts([tmp_path / named])
        assert [run.name for run in facts.runs] == ["cloud"]
    with pytest.raises(InputError, match="name the cloud's kit"):
        read_facts([tmp_path / "kits/edge-0"])


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        read_facts([tmp_path])


def test_an_estimate_of_one_value_has_no_deviation():
    assert estimate([81.0]).text() == "81.00"
    assert estimate([1.0, 3.0]).deviation == pytest.approx(2**0.5)

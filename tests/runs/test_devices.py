"""Sweeps over several devices: the same runs, in processes of their own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.runs.environment import devices_of
from sfedhp.runs.sweep import sweep
from tests.support.json_lines import json_lines, without_seconds


def experiments(devices: str, *seeds: int) -> list[sfedhp.Experiment]:
    return [
        sfedhp.Experiment(
            seed=seed,
            rounds=2,
            edges=1,
            clients_per_edge=2,
            device="cpu",
            algorithm=sfedhp.FedAvg(local_steps=2),
            model=sfedhp.ModelOptions(name="mlr"),
            engine=sfedhp.EngineOptions(devices=devices),
        )
        for seed in seeds
    ]


def rows(folder: Path) -> list[dict[str, float]]:
    return without_seconds(json_lines(folder / "history.jsonl"))


def test_two_processes_give_the_runs_of_one(tmp_path: Path):
    apart, alone = ([tmp_path / where / str(seed) for seed in range(3)] for where in ("apart", "alone"))
    reported: list[int] = []
    outcomes = sweep(
        experiments("cpu,cpu", 0, 1, 2), apart, report=lambda p: reported.append(int(p.row["round"]))
    )
    sweep(experiments("", 0, 1, 2), alone)
    assert [outcome.run.finished for outcome in outcomes] == [True] * 3
    assert sorted(reported) == [1, 1, 2, 2]  # two stacks
    for own, other in zip(apart, alone, strict=True):
        for found, wanted in zip(rows(own), rows(other), strict=True):
            assert found == pytest.approx(wanted)
        assert (own / "models" / "global.safetensors").exists() == (
            other / "models" / "global.safetensors"
        ).exists()


def test_a_stop_ends_all_processes(tmp_path: Path):
    folders = [tmp_path / str(seed) for seed in range(2)]
    outcomes = sweep(experiments("cpu,cpu", 0, 1), folders, stop=lambda: True)
    assert not any(outcome.run.finished for outcome in outcomes)


def test_an_error_is_raised_where_the_sweep_began(tmp_path: Path):
    lost = replace(experiments("cpu", 0)[0], data=sfedhp.DataOptions(source="lost.npz"))
    with pytest.raises(InputError, match=r"lost\.npz"):
        sweep([lost], [tmp_path / "0"])


def test_devices_by_name():
    assert devices_of("") == ()
    assert devices_of("cpu, cpu") == ("cpu", "cpu")
    assert set(devices_of("auto")) <= {"cpu", "cuda:0", "cuda:1"}
    with pytest.raises(InputError, match="not available"):
        devices_of("cpu,gpu7")


def test_what_processes_cannot_find_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="a folder for each run"):
        sweep(experiments("cpu,cpu", 0, 1))
    with pytest.raises(InputError, match="gpu7"):
        sfedhp.run(experiments("cpu,gpu7", 0)[0])


def test_one_run_is_divided_between_processes(tmp_path: Path):
    divided = replace(experiments("cpu,cpu", 0)[0], edges=2, dtype="float64", algorithm=sfedhp.SFedHP())
    found = sfedhp.run(divided, out=tmp_path / "divided")
    alone = sfedhp.run(replace(divided, engine=sfedhp.EngineOptions()), out=tmp_path / "alone")
    for own, other in zip(rows(tmp_path / "divided"), rows(tmp_path / "alone"), strict=True):
        assert own == pytest.approx(other, rel=1e-9)
    environment = json.loads((tmp_path / "divided" / "environment.json").read_text())
    assert "2 processes on cpu, cpu" in json.dumps(environment)
    for mine, theirs in zip(found.edge_models, alone.edge_models, strict=True):
        assert mine is not None
        assert theirs is not None
        for name, value in mine.state_dict().items():
            assert value == pytest.approx(theirs.state_dict()[name], rel=1e-9, abs=1e-12)

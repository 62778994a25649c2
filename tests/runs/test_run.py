"""Runs: folders, resuming, stopping, diverging, the user's own models and methods."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sfedhp
from sfedhp import InputError
from sfedhp.algorithms import (
    FedAvg,
    HeurFedAMP,
    PerFedAvg,
    PFedGP,
    PFedMe,
    SFedHP,
)
from sfedhp.config import CheckpointOptions, EvaluationOptions
from sfedhp.core.engine import EngineOptions
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions
from sfedhp.runs.folder import read_experiment
from sfedhp.runs.loop import Progress
from sfedhp.runs.run import DivergenceError
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import WireOptions
from tests.support import short_runs
from tests.support.json_lines import json_lines, without_seconds
from tests.support.short_runs import Bare, Mine, arrays

SMALL = replace(short_runs.SMALL, rounds=4, dtype="float32", checkpoint=CheckpointOptions(every=2))


def head_weight(model: nn.Module | None) -> torch.Tensor:
    assert model is not None
    return model.get_parameter("head.weight")


def test_a_run_leaves_its_folder(tmp_path):
    seen: list[Progress] = []
    run = sfedhp.run(SMALL, out=tmp_path / "a", report=seen.append)
    names = {
        path.relative_to(tmp_path / "a").as_posix() for path in (tmp_path / "a").rglob("*") if path.is_file()
    }
    models = {f"models/client-{edge}-{seat}.safetensors" for edge in range(2) for seat in range(3)}
    assert names == models | {
        "classes.csv",
        "clients.csv",
        "config.toml",
        "confusion.json",
        "environment.json",
        "history.csv",
        "history.jsonl",
        "schema.json",
        "history.jsonl.crc32",
        "models/global.safetensors",
        "models/edge-0.safetensors",
        "models/edge-1.safetensors",
        "checkpoint/round-000002.safetensors",
        "checkpoint/round-000004.safetensors",
    }
    assert [progress.row["round"] for progress in seen] == [1, 2, 3, 4]
    rows = json_lines(tmp_path / "a/history.jsonl")
    assert rows == run.history
    environment = json.loads((tmp_path / "a/environment.json").read_text())
    assert environment["parameters"] == 7850
    assert environment["torch"] == torch.__version__
    assert environment["gradients"] == "linear layers by hand"
    assert environment["captured"].startswith("no")
    assert read_experiment(tmp_path / "a") == run.experiment
    assert run.experiment.data.partition == "paper"
    assert run.summary["finished"]
    assert run.summary["folder"] == str(tmp_path / "a")


def test_models_in_the_folder_are_those_of_the_run(tmp_path):
    run = sfedhp.run(SMALL, out=tmp_path / "a")
    for name, module in (
        ("global", run.global_model),
        ("edge-1", run.edge_models[1]),
        ("client-1-2", run.client_models[1][2]),
    ):
        stored = load_file(tmp_path / f"a/models/{name}.safetensors")
        assert stored.keys() == {"head.weight", "head.bias"}
        assert module is not None
        for key, value in module.state_dict().items():
            assert torch.equal(stored[key], value)
    assert not torch.equal(head_weight(run.edge_models[0]), head_weight(run.edge_models[1]))


def test_methods_without_some_models(tmp_path):
    run = sfedhp.run(replace(SMALL, algorithm=HeurFedAMP(local_steps=1)), out=tmp_path / "amp")
    assert run.global_model is None
    assert run.edge_models == [None, None]
    assert isinstance(run.client_models[0][0], nn.Module)
    run = sfedhp.run(replace(SMALL, algorithm=FedAvg(local_steps=1)))
    assert run.client_models == [[None] * 3] * 2
    assert run.folder is None


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), PFedMe(local_rounds=2), PFedGP(local_steps=1)])
def test_stop_and_resume_equals_straight_through(tmp_path, method):
    experiment = replace(SMALL, algorithm=method, model=ModelOptions(name="dnn-small"))
    straight = sfedhp.run(experiment, out=tmp_path / "straight")
    rounds = []

    def stop():
        rounds.append(1)
        return len(rounds) == 3

    stopped = sfedhp.run(experiment, out=tmp_path / "stopped", stop=stop)
    assert not stopped.finished
    assert len(stopped.history) == 3
    resumed = sfedhp.resume(tmp_path / "stopped")
    assert resumed.finished
    assert without_seconds(resumed.history) == without_seconds(straight.history)
    for path in (tmp_path / "straight/models").iterdir():
        assert path.read_bytes() == (tmp_path / "stopped/models" / path.name).read_bytes()


def test_to_resume_what_is_finished_changes_nothing(tmp_path):
    sfedhp.run(replace(SMALL, rounds=2, model=ModelOptions(name="dnn-small")), out=tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a/models").iterdir()}
    assert sfedhp.resume(tmp_path / "a").finished
    assert {path: path.read_bytes() for path in before} == before


def test_resume_before_the_first_checkpoint_starts_again(tmp_path):
    sfedhp.run(SMALL, out=tmp_path / "a")
    for path in (tmp_path / "a/checkpoint").iterdir():
        path.unlink()
    assert len(sfedhp.resume(tmp_path / "a").history) == 4


def test_resume_of_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        sfedhp.resume(tmp_path)
    (tmp_path / "config.toml").write_text("rounds = ")
    with pytest.raises(InputError, match="cannot be read"):
        sfedhp.resume(tmp_path)


def test_evaluation_only_when_due():
    run = sfedhp.run(replace(SMALL, rounds=5, evaluation=EvaluationOptions(every=2)))
    assert [row["round"] for row in run.history if "gm" in row] == [2, 4, 5]
    assert all("bytes_client_edge" in row for row in run.history)


def test_seeds_change_split_initialization_and_batches():
    """The public fault: repeats that share one initialization."""
    one, two = (sfedhp.runs.prepare.prepare(replace(SMALL, seed=seed)) for seed in (0, 1))
    assert not torch.equal(one.simulator.initial, two.simulator.initial)
    assert not np.array_equal(one.federation.train[0], two.federation.train[0])
    assert not torch.equal(one.simulator.task.stream, two.simulator.task.stream)

    def one_initialization(seed):
        """The mutant: the model is built once, outside the repeats."""
        prepared = sfedhp.runs.prepare.prepare(replace(SMALL, seed=seed))
        return one.simulator.initial if seed else prepared.simulator.initial

    assert torch.equal(one_initialization(0), one_initialization(1))


def test_a_run_repeats_to_the_bit():
    one, two = sfedhp.run(SMALL), sfedhp.run(SMALL)
    assert without_seconds(one.history) == without_seconds(two.history)


def test_divergence_names_the_quantity_and_keeps_the_last_finite_state(tmp_path):
    wild = replace(
        SMALL,
        model=replace(SMALL.model, weight_decay=100.0),  # each step takes a model to −5 times itself
        rounds=30,
        evaluation=EvaluationOptions(every=30),
    )
    with pytest.raises(
        DivergenceError, match=r"diverged in round \d+: (the cloud's model|a client's)"
    ) as error:
        sfedhp.run(wild, out=tmp_path / "a")
    run = error.value.run
    assert not run.finished
    stored = load_file(tmp_path / "a/models/global.safetensors")
    assert all(value.isfinite().all() for value in stored.values())
    assert run.history == json_lines(tmp_path / "a/history.jsonl")


def test_an_exploding_loss_is_a_divergence():
    wild = replace(SMALL, model=replace(SMALL.model, weight_decay=100.0), rounds=30)
    with pytest.raises(
        DivergenceError, match=r"the training loss went from .* more than 100 times the first"
    ):
        sfedhp.run(wild)


def test_a_collapse_at_finite_weights_is_a_result():
    run = sfedhp.run(replace(SMALL, algorithm=FedAvg(local_rate=2.0, local_steps=2)))
    assert run.finished


def test_a_module_from_python():
    run = sfedhp.run(SMALL, model=nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Tanh(), nn.Linear(8, 10)))
    assert isinstance(run.global_model, nn.Sequential)
    assert isinstance(run.global_model[2], nn.Tanh)
    assert isinstance(run.client_models[1][1], nn.Sequential)


def test_a_run_with_a_users_model_and_method_is_resumed_with_them(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    experiment = replace(SMALL, algorithm=Mine())
    sfedhp.run(experiment, model=module, out=tmp_path / "a", stop=lambda: True)
    with pytest.raises(InputError, match=r"algorithm.name = 'mine' is not known"):
        sfedhp.resume(tmp_path / "a", model=module)
    with pytest.raises(InputError, match=r"The model of .* came from Python"):
        sfedhp.resume(tmp_path / "a", algorithm=Mine())
    resumed = sfedhp.resume(tmp_path / "a", algorithm=Mine(), model=module)
    assert resumed.finished
    assert without_seconds(resumed.history) == without_seconds(sfedhp.run(experiment, model=module).history)


def test_a_client_step_that_returns_no_client_result_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"client_step must return a ClientResult, and that of Bare returns"):
        sfedhp.run(replace(SMALL, algorithm=Bare()), out=tmp_path / "a")


@pytest.mark.parametrize("given", [{"rounds": 2}, {}, "experiment.toml", sfedhp.Experiment])
def test_what_is_no_experiment_is_an_input_error(given):
    for function in (sfedhp.run, sfedhp.check, lambda each: sfedhp.sweep([each])):
        with pytest.raises(InputError, match=r"give an Experiment, such as sfedhp\.Experiment\(rounds=2\)\."):
            function(given)


def test_adapted_models_of_per_fedavg_are_kept_too(tmp_path):
    run = sfedhp.run(replace(SMALL, algorithm=PerFedAvg(local_steps=2)), out=tmp_path / "a")
    stored = load_file(tmp_path / "a/models/client-1-2.safetensors")
    assert torch.equal(stored["head.weight"], head_weight(run.client_models[1][2]))
    assert not torch.equal(stored["head.weight"], head_weight(run.global_model))


def test_a_client_of_pfedgp_predicts_with_its_gaussian_processes(tmp_path):
    experiment = replace(SMALL, algorithm=PFedGP(chains=4), model=ModelOptions(name="dnn-small"))
    run = sfedhp.run(experiment, out=tmp_path / "a")
    prepared = sfedhp.runs.prepare.prepare(experiment)
    assert run.global_model is None
    test = prepared.evaluator.test
    correct = 0
    for edge in range(2):
        for seat in range(3):
            place = 3 * edge + seat
            model = run.client_models[edge][seat]
            assert model is not None
            scores = model(test.inputs[place])
            correct += int((scores.argmax(-1) == test.labels[place]).sum())
    assert 100 * correct / test.labels.numel() == pytest.approx(run.summary["pm_last"])
    assert load_file(tmp_path / "a/models/client-0-0.safetensors")["network"].shape == (784 * 100 + 100,)


def test_initial_weights_are_used(tmp_path, monkeypatch):
    first = sfedhp.run(SMALL, out=tmp_path / "a")
    path = tmp_path / "a/models/global.safetensors"
    prepared = sfedhp.runs.prepare.prepare(replace(SMALL, model=ModelOptions(name="mlr", initial=str(path))))
    assert first.global_model is not None
    expected = torch.cat([value.flatten() for value in first.global_model.parameters()])
    assert torch.equal(prepared.simulator.initial, expected)
    monkeypatch.chdir(path.parent)
    near = sfedhp.runs.prepare.prepare(replace(SMALL, model=ModelOptions(name="mlr", initial=path.name)))
    assert near.experiment.model.initial == str(path)  # a run may be resumed from another folder


def test_full_batches_against_a_hand_calculation():
    held = arrays()
    experiment = replace(
        SMALL, rounds=1, batch_size=0, dtype="float64", algorithm=FedAvg(local_steps=1, local_rate=0.1),
        data=DataOptions(),
    )  # fmt: skip
    prepared = sfedhp.runs.prepare.prepare(experiment, held)
    weights = prepared.simulator.initial.reshape(-1).numpy()
    next(prepared.simulator.run(1))
    federation = prepared.federation
    uploads, sizes = [], []
    for rows in federation.train:
        inputs, labels = federation.inputs[rows], federation.labels[rows]
        scores = inputs @ weights[:12].reshape(3, 4).T + weights[12:]
        share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        share[np.arange(len(labels)), labels] -= 1
        grad = np.concatenate([(share.T @ inputs).ravel(), share.sum(0)]) / len(labels)
        uploads.append(weights - 0.1 * grad)
        sizes.append(len(labels))
    expected = np.average(uploads, axis=0, weights=sizes)
    assert np.allclose(prepared.simulator.state.served.state.numpy(), expected, rtol=1e-12)


def test_options_reach_the_engine():
    experiment = replace(SMALL, engine=EngineOptions(clients_at_once=2), wire=WireOptions(threshold=0.01))
    prepared = sfedhp.runs.prepare.prepare(experiment)
    assert prepared.simulator.clients_at_once == 2
    assert prepared.simulator.links[Direction.CLIENT_EDGE].options.threshold == 0.01
    run = sfedhp.run(experiment)
    assert run.finished


def test_the_bytes_of_each_member_are_kept_where_they_are_counted(tmp_path):
    counted = replace(SMALL, wire=WireOptions(count="size"))
    sfedhp.run(counted, out=tmp_path / "a", stop=iter([False, False, True]).__next__)
    run = sfedhp.resume(tmp_path / "a")
    ledger = json_lines(tmp_path / "a/ledger.jsonl")
    assert [row["round"] for row in ledger] == [1, 2, 3, 4]
    for row, members in zip(run.history, ledger, strict=True):
        assert np.shape(members["client_edge"]) == (2, 3)
        assert np.shape(members["edge_cloud"]) == (2,)
        for direction in members.keys() - {"round"}:
            assert np.sum(members[direction]) == row[f"bytes_{direction}"]
    sfedhp.run(SMALL, out=tmp_path / "b")
    assert not (tmp_path / "b/ledger.jsonl").exists()


def test_a_run_that_diverges_while_its_messages_are_coded_says_so():
    wild = replace(SMALL, algorithm=SFedHP(edge_rounds=3, edge_rate=1e30), wire=WireOptions(count="encode"))
    with pytest.raises(DivergenceError, match="has values that are not finite"):
        sfedhp.run(wild)


def test_a_run_is_shown_in_a_few_lines():
    run = sfedhp.run(replace(SMALL, rounds=2))
    lines = repr(run).splitlines()
    assert len(lines) == 4
    assert "sfedhp on fmnist-mini" in lines[0]
    assert f"GM {run.summary['gm_last']:.2f}" in lines[2]

"""Many runs at once give what each gives alone."""

import json
from dataclasses import replace

import pytest
import torch

import sfedhp
from sfedhp import Experiment, sweeping
from sfedhp.algorithms import FedAvg, HeurFedAMP, PFedMe, SFedHP
from sfedhp.data import DataOptions
from sfedhp.evaluation import EvaluationOptions
from sfedhp.models import ModelOptions
from sfedhp.preparation import merged
from sfedhp.scalars import PerRun
from sfedhp.sweeping import plan, sweep

SMALL = Experiment(
    rounds=3,
    edges=2,
    clients_per_edge=3,
    dtype="float64",
    algorithm=SFedHP(edge_rounds=2),
    data=DataOptions(train_per_label=6, test_per_label=5, validation_per_label=2),
    model=ModelOptions(name="mlr"),
)


def flat(module):
    return torch.cat([value.flatten() for value in module.parameters()])


@pytest.mark.parametrize(
    "methods",
    [
        [SFedHP(edge_rounds=2, client_proximity=value, edge_proximity=value) for value in (5.0, 15.0)],
        [SFedHP(edge_rounds=2, client_sparsity=g, edge_sparsity=g, smoothing=1e-2) for g in (1e-3, 4e-3)],
        [FedAvg(local_steps=3, local_rate=rate) for rate in (0.05, 0.1)],
        [PFedMe(local_rounds=2, cloud_mixing=mixing) for mixing in (1.0, 0.5)],
        [HeurFedAMP(local_steps=2, self_weight=weight) for weight in (0.1, 0.5)],
    ],
    ids=lambda methods: type(methods[0]).__name__,
)
def test_each_run_of_a_stack_gives_its_own_numbers(methods):
    experiments = [replace(SMALL, algorithm=method, seed=seed) for method in methods for seed in (0, 1)]
    assert len(plan(experiments)) == 1
    for experiment, outcome in zip(experiments, sweep(experiments), strict=True):
        alone = sfedhp.run(experiment)
        assert outcome.trouble is None
        assert outcome.run.experiment == alone.experiment
        for first, second in zip(outcome.run.history, alone.history, strict=True):
            assert first.keys() == second.keys()
            for name in first.keys() - {"seconds"}:
                assert first[name] == pytest.approx(second[name], rel=1e-9), name
        for one, two in zip(outcome.run.client_models[1], alone.client_models[1], strict=True):
            if two is not None:
                assert (flat(one) - flat(two)).norm() <= 1e-9 * flat(two).norm()
        if alone.global_model is not None:
            assert (flat(outcome.run.global_model) - flat(alone.global_model)).norm() < 1e-9


def test_only_what_has_one_shape_is_stacked():
    experiments = [
        SMALL,
        replace(SMALL, seed=3),
        replace(SMALL, algorithm=SFedHP(edge_rounds=3)),
        replace(SMALL, algorithm=SFedHP(edge_rounds=2, edge_rate=0.1)),
        replace(SMALL, batch_size=5),
        # A term that is there computes something else than a term that is not.
        replace(SMALL, algorithm=SFedHP(edge_rounds=2, client_sparsity=1e-3)),
    ]
    assert [stack.places for stack in plan(experiments, at_once=8)] == [(0, 1, 3), (2,), (4,), (5,)]
    assert [stack.places for stack in plan(experiments, at_once=2)] == [(0, 1), (3,), (2,), (4,), (5,)]


def test_memory_limits_a_stack(monkeypatch):
    monkeypatch.setattr(sweeping, "free_memory", lambda device: 10_000_000)
    stacks = plan([replace(SMALL, seed=seed) for seed in range(6)])
    assert len(stacks) > 1
    assert sorted(place for stack in stacks for place in stack.places) == list(range(6))


def test_equal_values_stay_plain():
    method = merged([SFedHP(edge_rate=0.1), SFedHP(edge_rate=0.2)])
    assert isinstance(method.edge_rate, PerRun)
    assert method.personal_rate == 0.05


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path):
    wild = replace(
        SMALL, algorithm=SFedHP(edge_rounds=2, edge_rate=1e200), evaluation=EvaluationOptions(every=3)
    )
    calm = replace(SMALL, evaluation=EvaluationOptions(every=3))
    folders = [tmp_path / "wild", tmp_path / "calm"]
    first, second = sweep([wild, calm], folders)
    assert "has values that are not finite" in first.trouble
    assert not first.run.finished
    assert second.trouble is None
    alone = sfedhp.run(calm)
    assert second.run.history[-1]["gm"] == alone.history[-1]["gm"]
    assert len((tmp_path / "calm/history.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "wild/models/global.safetensors").exists()
    assert json.loads((tmp_path / "calm/environment.json").read_text())["runs_at_once"] == 2


def test_runs_with_tables_of_different_width_are_stacked():
    data = DataOptions(source="synthetic")
    experiments = [replace(SMALL, data=data, seed=seed) for seed in (0, 1)]
    widths = {sfedhp.preparation.prepare(each).simulator.task.labels.shape[-1] for each in experiments}
    assert len(widths) == 2
    for experiment, outcome in zip(experiments, sweep(experiments, at_once=2), strict=True):
        alone = sfedhp.run(experiment)
        assert outcome.run.history[-1]["gm_loss"] == pytest.approx(alone.history[-1]["gm_loss"], rel=1e-9)


def test_a_sweep_can_be_stopped():
    asked = []

    def stop():
        asked.append(1)
        return len(asked) >= 2

    outcomes = sweep([SMALL, replace(SMALL, batch_size=5)], stop=stop)
    assert len(outcomes) == 1
    assert len(outcomes[0].run.history) == 2

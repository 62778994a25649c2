"""Finishing steps and steps of the cloud: equal to NumPy transcriptions, never sent, kept nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import sfedhp
from sfedhp.algorithms import Algorithm, FedAvg, HierFAVG, PFedMe, SFedHP, SFedHPPlus
from sfedhp.config import Experiment
from sfedhp.core.types import Clock
from sfedhp.data import DataOptions
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.models import ModelOptions
from tests.reference import baselines
from tests.reference import sfedhp as reference
from tests.reference.agreement import close
from tests.reference.data import SMALL_NETWORKS, federation, flatten, initial_model
from tests.reference.networks import Network, Rows, Vector
from tests.reference.training import Training
from tests.support.json_lines import without_seconds
from tests.support.short_runs import after
from tests.support.simulation import Models, finish, simulator

TOLERANCE, ROUNDS, STEPS, RATE, PULL = 1e-10, 3, 4, 0.07, 0.6
NETWORK: Network = SMALL_NETWORKS[3]
FINISH: dict[str, Any] = {"finish_steps": STEPS, "finish_rate": RATE, "finish_proximity": PULL}
ENVELOPE: dict[str, Any] = {"client_proximity": 5.0, "local_rounds": 3, "personal_steps": 4}
OURS: dict[str, Any] = {
    "edge_rounds": 3,
    "personal_steps": 4,
    "client_proximity": 5.0,
    "edge_proximity": 3.0,
    "edge_rate": 0.1,
}
METHODS: dict[str, Any] = {
    "fedavg": FedAvg(local_rate=0.1, local_steps=4),
    "hierfavg": HierFAVG(local_rate=0.1, local_steps=2, edge_rounds=2),
    "pfedme": PFedMe(**ENVELOPE),
    "sfedhp": SFedHP(**OURS),
}
each_method = pytest.mark.parametrize("name", METHODS)


def engine_of(method: Algorithm, batch_size: int = 0) -> Simulator:
    return simulator(method, NETWORK, federation(), initial_model(NETWORK), batch_size=batch_size)


def finished(start: Vector, batches: list[Rows], near: Vector) -> Vector:
    """Steps on ℓ(x; D) + μ/2 ‖x − a‖², one on each mini-batch."""
    for rows in batches:
        start = start - RATE * (NETWORK.gradient(start, rows) + PULL * (start - near))
    return start


def personals_of(models: Models) -> list[Vector]:
    """What each client would predict with if it took no finishing steps: else the global model."""
    assert models.model is not None
    return models.personals or [models.model] * len(flatten(federation()))


@each_method
@pytest.mark.parametrize("rows", ["batch", "all"])
def test_finishing_steps_are_sgd_from_the_personal_model(name: str, rows: Any) -> None:
    # Mini-batches of two rows train the models; with "all" the finishing steps see every row all the same.
    batch_size = 2 if rows == "all" else 0
    method = replace(METHODS[name], finish_rows=rows, **FINISH)
    found = finish(engine_of(method, batch_size), ROUNDS).personals
    unfinished = finish(engine_of(METHODS[name], batch_size), ROUNDS)
    starts = personals_of(unfinished)
    expected = [
        finished(start, [own] * STEPS, start)
        for start, own in zip(starts, flatten(federation()), strict=True)
    ]
    close(found, expected, TOLERANCE)
    assert np.abs(np.array(found) - np.array(starts)).max() > 1e-3


def test_each_finishing_step_has_a_mini_batch_that_training_never_sees() -> None:
    engine = engine_of(replace(METHODS["fedavg"], **FINISH), batch_size=2)
    models = finish(engine, ROUNDS)
    assert models.model is not None
    draws = [engine.task.batch(Clock(ROUNDS), step, "finish") for step in range(STEPS)]
    training = engine.task.batch(Clock(ROUNDS), 0)
    assert not torch.equal(draws[0].inputs, training.inputs)
    expected = []
    for client in range(len(flatten(federation()))):
        batches = [Rows(draw.inputs[client].numpy(), draw.labels[client].numpy()) for draw in draws]
        expected.append(finished(models.model, batches, models.model))
    close(models.personals, expected, TOLERANCE)


def test_finishing_steps_near_the_edge_are_pulled_to_the_model_received_last() -> None:
    method = SFedHP(**OURS, **FINISH, finish_near="edge")
    found = finish(engine_of(method), ROUNDS).personals
    # With one edge round less in the last cloud round, the edges end with what was received last.
    before = finish(engine_of(SFedHP(**OURS)), ROUNDS - 1).model
    assert before is not None
    settings = reference.Settings(**{**OURS, "edge_rounds": OURS["edge_rounds"] - 1})
    earlier = reference.run(NETWORK, federation(), before, 1, settings)
    received = [earlier.edge_personals[edge] for edge, own in enumerate(federation()) for _ in own]
    starts = personals_of(finish(engine_of(SFedHP(**OURS)), ROUNDS))
    expected = [
        finished(start, [own] * STEPS, near)
        for start, own, near in zip(starts, flatten(federation()), received, strict=True)
    ]
    close(found, expected, TOLERANCE)


def test_the_schedule_of_sparsity_and_carried_starts_read_the_model_beside_the_edges() -> None:
    options = OURS | {"client_sparsity": 0.05, "start": "carried", "sparsity_floor": 0.9}
    one, two = engine_of(SFedHP(**options)), engine_of(SFedHP(**options, finish_near="edge", finish_steps=1))
    close(finish(two, ROUNDS).model, finish(one, ROUNDS).model, 1e-14)


@each_method
def test_nothing_of_it_is_sent(name: str) -> None:
    one, two = engine_of(METHODS[name], 2), engine_of(replace(METHODS[name], **FINISH), 2)
    np.testing.assert_array_equal(finish(one, ROUNDS).model, finish(two, ROUNDS).model)


def test_finishing_steps_have_a_rule_of_their_own() -> None:
    for method in METHODS.values():
        rules = replace(method, **FINISH).step_rules()
        assert [rule for rule in rules if rule not in method.step_rules()] == [rules[-1]]
        assert (rules[-1].rate.value, rules[-1].pull and rules[-1].pull.value) == (RATE, PULL)
    assert replace(METHODS["fedavg"], finish_steps=1).step_rules()[-1].pull is None


# Steps of the cloud

SERVER: dict[str, Any] = {"server": "momentum", "server_rate": 0.8, "server_beta1": 0.7}
MIXING = 0.6


def with_momentum(name: str) -> Algorithm:
    mixing = {"cloud_mixing": MIXING} if name in ("pfedme", "sfedhp") else {}
    return replace(METHODS[name], **SERVER, **mixing)


def goal(name: str, model: Vector) -> Vector:
    """Where one round of the method without server steps leads from a model."""
    clients, edges = flatten(federation()), federation()
    options: dict[str, Any]
    if name == "fedavg":
        return baselines.fedavg(Training(NETWORK, clients, model, 1), local_rate=0.1, local_steps=4)
    if name == "hierfavg":
        options = {"local_rate": 0.1, "local_steps": 2, "edge_rounds": 2}
        return baselines.hierfavg(Training(NETWORK, edges, model, 1), **options)[0]
    if name == "pfedme":
        options = {**ENVELOPE, "personal_rate": 0.05, "local_rate": 0.05, "cloud_mixing": MIXING}
        found = baselines.pfedme(Training(NETWORK, clients, model, 1), **options).model
        assert found is not None
        return found
    settings = reference.Settings(**OURS, cloud_mixing=MIXING)
    return reference.run(NETWORK, edges, model, 1, settings).model


@each_method
def test_momentum_at_the_cloud_is_of_the_steps_that_the_method_makes(name: str) -> None:
    model, velocity = initial_model(NETWORK), np.zeros(NETWORK.size)
    for _ in range(ROUNDS):
        # m ← β₁ m + (goal − w),  w ← w + η m
        velocity = SERVER["server_beta1"] * velocity + goal(name, model) - model
        model = model + SERVER["server_rate"] * velocity
    close(finish(engine_of(with_momentum(name)), ROUNDS).model, model, TOLERANCE)


# Runs


def experiment(method: Algorithm, seed: int = 0) -> Experiment:
    return Experiment(
        rounds=4,
        edges=2,
        clients_per_edge=2,
        seed=seed,
        dtype="float64",
        algorithm=method,
        model=ModelOptions(name="mlr"),
        data=DataOptions(train_per_label=10, test_per_label=5),
    )


PLUS = SFedHPPlus(edge_rounds=2, finish_steps=2, finish_proximity=0.3, finish_near="edge")


@pytest.mark.parametrize("method", [PLUS, replace(with_momentum("hierfavg"), **FINISH)], ids=["plus", "hier"])
def test_runs_resume_and_stack_to_the_bit(method: Any, tmp_path: Any) -> None:
    settings = [experiment(replace(method, finish_rate=rate), seed) for seed, rate in ((0, 0.1), (1, 0.02))]
    whole = [sfedhp.run(each) for each in settings]
    for alone, outcome in zip(whole, sfedhp.sweep(settings), strict=True):
        for row, expected in zip(outcome.run.history, alone.history, strict=True):
            assert row.keys() == expected.keys()
            assert all(
                row[name] == pytest.approx(expected[name], abs=1e-9) for name in row if name != "seconds"
            )
    sfedhp.run(settings[0], out=tmp_path / "run", stop=after(2))
    resumed = sfedhp.resume(tmp_path / "run")
    assert without_seconds(resumed.history) == without_seconds(whole[0].history)
    # The models that are saved are the finished ones, on which PM was measured.
    one, two = resumed.client_models[0][1], whole[0].client_models[0][1]
    assert one is not None
    assert two is not None
    other = two.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.state_dict().items())
    unfinished = sfedhp.run(experiment(replace(method, finish_steps=0)))
    assert unfinished.history[-1]["gm"] == whole[0].history[-1]["gm"]
    assert unfinished.history[-1].get("pm_loss") != whole[0].history[-1]["pm_loss"]

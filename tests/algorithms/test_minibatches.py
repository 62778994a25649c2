"""Which mini-batch each step uses: client by client in NumPy, on the rows that the task draws.

With full batches, as in `test_against_reference.py`, a method that draws a wrong mini-batch is not noticed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sfedhp import algorithms
from sfedhp.algorithms import SFedHP
from sfedhp.core.factored import dense
from sfedhp.core.types import Clock
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.task import Task
from tests.reference.agreement import close
from tests.reference.data import FEATURES, SMALL_NETWORKS, federation, flatten, initial_model
from tests.reference.networks import Network, Rows, Softmax, Vector
from tests.reference.sfedhp import density
from tests.reference.training import weighted_mean
from tests.support.simulation import finish, simulator

TOLERANCE, ROUNDS, BATCH = 1e-10, 3, 2
NETWORK: Network = SMALL_NETWORKS[3]
SIZES = [len(rows.labels) for rows in flatten(federation())]


def engine_of(algorithm: algorithms.Algorithm) -> Simulator:
    return simulator(algorithm, NETWORK, federation(), initial_model(NETWORK), batch_size=BATCH)


def drawn_rows(task: Task, clock: Clock, number: int, role: str = "batch") -> list[Rows]:
    """The rows of each client in a draw."""
    batch = task.batch(clock, number, role)
    inputs, labels, real = (
        each.reshape(len(SIZES), *each.shape[len(task.lead) :]).numpy()
        for each in (batch.inputs, batch.labels, batch.real)
    )
    assert all(mask.sum() == BATCH for mask in real)
    return [Rows(inputs[who][real[who]], labels[who][real[who]]) for who in range(len(SIZES))]


def test_draws_differ() -> None:
    """Otherwise the tests below could not tell one mini-batch from another."""
    task = engine_of(algorithms.FedAvg()).task
    draws = [drawn_rows(task, Clock(0), number) for number in range(4)]
    draws += [drawn_rows(task, Clock(1), 0), drawn_rows(task, Clock(0), 0, "adapt")]
    seen = {tuple(np.concatenate([rows.inputs.ravel() for rows in draw]).round(9)) for draw in draws}
    assert len(seen) == len(draws)


def test_fedavg_takes_a_new_mini_batch_in_every_step() -> None:
    rate, steps = 0.1, 4
    engine = engine_of(algorithms.FedAvg(local_rate=rate, local_steps=steps))
    model = initial_model(NETWORK)
    for turn in range(ROUNDS):
        local = [model] * len(SIZES)
        for step in range(steps):
            rows = drawn_rows(engine.task, Clock(turn), step)
            local = [own - rate * NETWORK.gradient(own, part) for own, part in zip(local, rows, strict=True)]
        model = weighted_mean(local, SIZES)
    close(finish(engine, ROUNDS).model, model, TOLERANCE)


@pytest.mark.parametrize("order", ["first", "second"])
def test_perfedavg_adapts_on_one_mini_batch_and_steps_on_another(order: Any) -> None:
    adaptation, rate, steps = 0.2, 0.15, 3
    engine = engine_of(
        algorithms.PerFedAvg(adaptation_rate=adaptation, meta_rate=rate, local_steps=steps, order=order)
    )

    def adapted(start: Vector, rows: Rows) -> Vector:
        return start - adaptation * NETWORK.gradient(start, rows)

    model = initial_model(NETWORK)
    for turn in range(ROUNDS):
        local = [model] * len(SIZES)
        for step in range(steps):
            first, second = (drawn_rows(engine.task, Clock(turn), 2 * step + each) for each in (0, 1))
            for who, (one, other) in enumerate(zip(first, second, strict=True)):
                gradient = NETWORK.gradient(adapted(local[who], one), other)
                if order == "second":
                    # (I − α∇²ℓ(w; D)) ∇ℓ(w − α∇ℓ(w; D); D′)
                    gradient = gradient - adaptation * NETWORK.hessian_times(local[who], gradient, one)
                local[who] = local[who] - rate * gradient
        model = weighted_mean(local, SIZES)
    found = finish(engine, ROUNDS)
    close(found.model, model, TOLERANCE)
    # The personal models adapt on a draw of their own, not on one that trained the model.
    rows = drawn_rows(engine.task, Clock(ROUNDS), 0, "adapt")
    close(found.personals, [adapted(model, each) for each in rows], TOLERANCE)


def test_pfedme_takes_a_new_mini_batch_in_every_turn() -> None:
    proximity, personal_rate, local_rate, turns, steps = 5.0, 0.05, 0.07, 3, 2
    engine = engine_of(
        algorithms.PFedMe(
            client_proximity=proximity,
            personal_rate=personal_rate,
            local_rate=local_rate,
            local_rounds=turns,
            personal_steps=steps,
        )
    )
    model = initial_model(NETWORK)
    personal = [model] * len(SIZES)
    for turn in range(ROUNDS):
        local, personal = [model] * len(SIZES), [model] * len(SIZES)
        for number in range(turns):
            rows = drawn_rows(engine.task, Clock(turn), number)
            for who, part in enumerate(rows):
                for _ in range(steps):
                    pull = proximity * (personal[who] - local[who])
                    gradient = NETWORK.gradient(personal[who], part) + pull
                    personal[who] = personal[who] - personal_rate * gradient
                local[who] = local[who] - local_rate * proximity * (local[who] - personal[who])
        model = weighted_mean(local, [1] * len(SIZES))
    found = finish(engine, ROUNDS)
    close(found.model, model, TOLERANCE)
    close(found.personals, personal, TOLERANCE)


@pytest.mark.parametrize(("floor", "acts"), [(0.5, True), (0.5 + 2**-40, False)])
def test_sparsity_acts_on_a_client_that_is_just_at_the_floor(floor: float, acts: bool) -> None:
    network = Softmax(FEATURES, 4)
    model = np.zeros(network.size)
    model[: network.size // 2] = 1.0
    assert density(model, 0.5) == 0.5
    engine = simulator(
        SFedHP(client_sparsity=0.3, sparsity_floor=floor, edge_rounds=1), network, federation(), model
    )
    engine.task.density_threshold = 0.5
    free = simulator(SFedHP(client_sparsity=0.0, edge_rounds=1), network, federation(), model)
    next(engine.run(1))
    next(free.run(1))
    same = torch.equal(dense(engine.state.personal), dense(free.state.personal))
    assert same != acts

"""Checks that the same method gives the same numbers stacked, alone, resumed and on other machines."""

from __future__ import annotations

import dataclasses
import tempfile
import typing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.checks.problem import (
    CLIENTS,
    EDGES,
    ROUNDS,
    CheckError,
    Problem,
    check_is_dataclass,
    finish,
    leaves,
    outcome,
    problem,
    same,
)
from sfedhp.core.keys import ROLES, key
from sfedhp.core.scalars import PerRun
from sfedhp.core.types import Clock
from sfedhp.engine.roles import Carry, Client, Cloud, Edge, Member
from sfedhp.engine.rounds import drawing
from sfedhp.engine.simulator import Simulator
from sfedhp.runs import checkpoints
from sfedhp.wire import decode, encode


def equal_one_by_one(algorithm: Algorithm) -> None:
    """Stacked clients and single clients give the same, with all present and with some sampled or silent."""
    half = 2 if algorithm.tiers == 3 else 5
    for sampled, lost in ((0, None), (half, None), (half, _lost)):
        case = problem()
        simulator = case.simulator(algorithm, sampled=sampled, lost=lost)
        finish(simulator)
        _compare("one by one", simulator, *_alone(algorithm, case, sampled, lost is not None, _as_it_is))


def equal_over_a_link(algorithm: Algorithm) -> None:
    """Encoding every message as bytes gives the same results as the simulator."""
    case = problem()
    simulator = case.simulator(algorithm)
    finish(simulator)
    _compare("over a link", simulator, *_alone(algorithm, case, 0, False, lambda sent: decode(encode(sent))))


def equal_permuted(algorithm: Algorithm) -> None:
    """Permuted clients (their ids travel along, within an edge) give permuted results."""
    case = problem()
    order = torch.tensor([2, 0, 3, 1])
    other = replace(case, task=case.task.map(lambda tensor: tensor[:, order]), ids=case.ids[:, order])
    one, two = case.simulator(algorithm), other.simulator(algorithm)
    finish(one)
    finish(two)
    ranks = [simulator.ids.flatten().argsort() for simulator in (one, two)]
    for (name, first), (_, second) in zip(outcome(one), outcome(two), strict=True):
        if name == "personal" or (algorithm.state_per_member and algorithm.tiers == 2):
            first, second = (
                tensor.reshape(len(rank), -1)[rank]
                for tensor, rank in zip((first, second), ranks, strict=True)
            )
        same("clients permuted", name, first, second)


def equal_in_a_batch_of_runs(algorithm: Algorithm) -> None:
    """A run in a stack of runs gives the same as alone, its hyper-parameters differing from the others'."""
    check_is_dataclass(algorithm)
    cases = [problem(seed) for seed in (0, 1)]
    varied = {
        option.name: getattr(algorithm, option.name)
        for option in dataclasses.fields(algorithm)
        if _may_vary(algorithm, option.name) and getattr(algorithm, option.name)
    }
    methods = [
        replace(algorithm, **{name: factor * value for name, value in varied.items()})
        for factor in (1.0, 0.9)
    ]
    apart = {name: PerRun([getattr(method, name) for method in methods]) for name in varied}
    tasks = [case.task for case in cases]
    names = ("inputs", "labels", "sizes", "stream")
    both: dict[str, Any] = {name: torch.stack([getattr(task, name) for task in tasks]) for name in names}
    stacked = replace(tasks[0], **both)
    together = Simulator(
        replace(algorithm, **apart),
        stacked,
        cases[0].ids,
        torch.stack([case.initial for case in cases]),
        torch.stack([case.statistics for case in cases]),
        torch.stack([key(case.seed, ROLES["draw"]) for case in cases]),
    )
    finish(together)
    for index, (case, method) in enumerate(zip(cases, methods, strict=True)):
        alone = case.simulator(method)
        finish(alone)
        for (name, first), (_, second) in zip(outcome(together), outcome(alone), strict=True):
            same("in a batch of runs", name, first[index], second)


def equal_after_resume(algorithm: Algorithm) -> None:
    """A run that is stopped, saved, loaded and continued has the same bits as one without a stop."""
    straight, stopped, resumed = (problem().simulator(algorithm) for _ in range(3))
    finish(straight)
    for _ in stopped.run(1):
        pass
    reload_state(stopped, resumed)
    finish(resumed)
    for (name, first), (_, second) in zip(outcome(straight), outcome(resumed), strict=True):
        if not torch.equal(first, second):
            raise CheckError(f"after resume: {name} differs from the unbroken run.")


def reload_state(stopped: Simulator, resumed: Simulator) -> None:
    """Save the state of one simulation as a checkpoint, and let another continue from it."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(stopped.state, Path(folder))
        state = checkpoints.load(resumed, Path(folder))
    assert state is not None
    resumed.state = state


def repeatable(algorithm: Algorithm) -> None:
    """The same seed gives the same bits, another seed other numbers."""
    runs = [problem(seed).simulator(algorithm) for seed in (0, 0)]
    # Another seed on the same data and initial weights: only the draws differ.
    case = problem()
    ids = key(1, ROLES["client"], case.ids)
    runs.append(replace(case, task=replace(case.task, stream=ids)).simulator(algorithm))
    for simulator in runs:
        finish(simulator)
    one, again, other = (outcome(simulator) for simulator in runs)
    if any(not torch.equal(first, second) for (_, first), (_, second) in zip(one, again, strict=True)):
        raise CheckError("repeatable: the same seed gave other numbers.")
    if all(torch.equal(first, second) for (_, first), (_, second) in zip(one, other, strict=True)):
        raise CheckError("repeatable: another seed gave the same numbers.")


def _lost(clock: Clock, ids: Tensor) -> Tensor:
    """Which members do not reply at a time: single clients, and a whole edge in one of its rounds."""
    turn = int(clock.cloud_round)
    one = ids == (5 * turn + clock.edge_round) % (EDGES * CLIENTS)
    return one | (ids < CLIENTS) & (turn == 1) & (clock.edge_round == 0)


def _is_lost(clock: Clock, id_: Tensor) -> bool:
    """Whether one client does not reply at this time."""
    return bool(_lost(clock, id_))


def _as_it_is(sent: Tensor) -> Tensor:
    return sent


def _alone(
    algorithm: Algorithm, case: Problem, sampled: int, silent: bool, carry: Carry
) -> tuple[Cloud, list[Client]]:
    """The same rounds with every role as an object of its own, without stacking."""
    clients = []
    for edge in range(EDGES):
        for seat in range(CLIENTS):
            size = int(case.task.sizes[edge, seat])
            task = replace(
                case.task,
                inputs=case.task.inputs[edge, seat, :size],
                labels=case.task.labels[edge, seat, :size],
                sizes=case.task.sizes[edge, seat],
                stream=case.task.stream[edge, seat],
            )
            client = Client(algorithm, task, algorithm.client_start(case.initial, task), case.statistics)
            if silent:
                client.silent = partial(_is_lost, id_=case.ids[edge, seat])
            clients.append(client)
    members: list[Member] = list(clients)
    if algorithm.tiers == 3:
        groups = [clients[edge * CLIENTS : (edge + 1) * CLIENTS] for edge in range(EDGES)]
        members = [Edge(algorithm, group, case.statistics, carry) for group in groups]
    ids = torch.arange(len(members))
    draw = drawing(key(case.seed, ROLES["draw"]), sampled, ids, torch.ones(len(members), dtype=torch.bool))
    cloud = Cloud(algorithm, members, case.initial, case.statistics, draw, carry)
    for _ in cloud.run(ROUNDS):
        pass
    return cloud, clients


def _compare(what: str, simulator: Simulator, cloud: Cloud, clients: list[Client]) -> None:
    for first, second in zip(leaves(simulator.state.served), leaves(cloud.served), strict=True):
        same(what, "the cloud's state", first, second)
    personals = [leaves(client.personal) for client in clients]
    stacked = leaves(simulator.state.personal)
    for index, tensor in enumerate(stacked):
        own = torch.stack([personal[index] for personal in personals])
        same(what, "a client's personal state", tensor.reshape(own.shape), own)


def _may_vary(algorithm: Algorithm, name: str) -> bool:
    """Whether the option may differ between runs."""
    hint = typing.get_type_hints(type(algorithm)).get(name)
    return PerRun in typing.get_args(hint)

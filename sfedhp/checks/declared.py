"""Checks that a method does what its class declares: pulls, draws, what clients keep, what members weigh."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.checks.problem import (
    CLIENTS,
    EDGES,
    CheckError,
    Problem,
    check_is_dataclass,
    leaves,
    problem,
)
from sfedhp.core.factored import Factored, dense
from sfedhp.core.trees import tree_map
from sfedhp.core.types import Batch, Clock, tuple_like
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.losses import Loss
from sfedhp.nn.task import Task

_CLOSE = 1e-9
_SMALL = 1e-6  # a change of an upload, so small that a server's step is linear in it
_RATIO = 1e-3  # by how much what members weigh may differ from what is declared


@dataclass
class Watched(Task):
    """A task that notes which rows are drawn, and how often a gradient is asked for."""

    drawn: list[Tensor] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)

    def take(self, rows: Tensor, real: Tensor, keys: Tensor, augment: bool = True) -> Batch:
        """See `Task.take`."""
        self.drawn.append(torch.where(real, rows, -1).sort(-1).values)
        return super().take(rows, real, keys, augment)

    def gradient(self, model: Tensor | Factored, batch: Batch, loss: Loss | None = None) -> Tensor:
        """See `Task.gradient`."""
        self.gradients.append(1)
        return super().gradient(model, batch, loss)


def pull_changes_the_step(algorithm: Algorithm) -> None:
    """A stronger pull brings a client nearer to what it received: a proximal term must have this effect."""
    check_is_dataclass(algorithm)
    # A step without data may be a server's.
    rules = [rule for rule in algorithm.step_rules() if rule.uses_data and rule.pull is not None]
    for rule in rules:
        assert rule.pull is not None
        name, strength = rule.pull
        # Weak enough that no step goes past its anchor.
        weak = min(strength or 0.1, 0.2 / rule.rate.value)
        near = [_models(replace(algorithm, **{name: factor * weak})) for factor in (1.0, 2.0)]
        received = near[0][0]
        moved = [
            (first, second)
            for first, second in zip(near[0][1:], near[1][1:], strict=True)
            if not torch.allclose(first, second, rtol=_CLOSE, atol=0)
        ]
        if not moved:
            raise CheckError(
                f"the pull: {name} does not change what a client computes. If it is not a pull, override "
                f"step_rules()."
            )
        gaps = [[float((model - received).norm()) for model in pair] for pair in moved]
        # What only the predicting model is pulled to is its own start, which is not known here.
        if not any(after < before for before, after in gaps) and not name.startswith("finish"):
            raise CheckError(f"the pull: a stronger {name} takes a client farther from what it received.")


def draws_change(algorithm: Algorithm) -> None:
    """Mini-batches change with the round, and from step to step where the class says so."""
    clocks = [Clock(0), Clock(1)] + ([Clock(0, 1)] if algorithm.tiers == 3 else [])
    tasks = [_watched(algorithm, clock) for clock in clocks]
    first = tasks[0]
    if all(rows.shape[-1] == first.rows for rows in first.drawn):
        return  # every draw has all rows
    for clock, task in zip(clocks[1:], tasks[1:], strict=True):
        if _same_draws(first.drawn, task.drawn):
            what = "edge round" if clock.edge_round else "cloud round"
            raise CheckError(f"draws: every {what} has the same mini-batches; give the clock to task.batch.")
    with_data = [rule for rule in algorithm.step_rules() if rule.uses_data]
    distinct = {tuple(rows.flatten().tolist()) for rows in first.drawn}
    if (
        len(distinct) == 1
        and len(first.gradients) > 1
        and with_data
        and all(rule.new_batch_each_step for rule in with_data)
    ):
        raise CheckError(
            "draws: all steps of a round use one mini-batch; draw a new one for each by task.batch(clock, "
            "step), or override step_rules()."
        )


def kept_state_is_used(algorithm: Algorithm) -> None:
    """What a client keeps changes, is read where the class says so, and decides what it predicts with."""
    # Some methods keep only a part of the model, which a network may not have.
    cases = [_second_step(algorithm, problem(norm=norm)) for norm in (False, True)]
    if not leaves(cases[0].kept):
        return
    if not any(case.changed for case in cases):
        raise CheckError("what is kept: a client's step never changes what client_start gave it.")
    reads = any(case.reads for case in cases)
    if reads != algorithm.needs_personal_state:
        raise CheckError(
            "what is kept: client_step "
            + (
                "reads what the client kept, but needs_personal_state is False."
                if reads
                else "does not read what the client kept; use it, or return False from needs_personal_state."
            )
        )
    if all(case.predicts_with_received for case in cases):
        raise CheckError("what is kept: a client predicts with what it received, not with what it kept.")


def members_weigh_what_is_declared(algorithm: Algorithm) -> None:
    """A server's mean weighs its members as `weighting` says: by their rows, or all alike."""
    case = problem()
    simulator = case.simulator(algorithm)
    cloud = algorithm.cloud_start(case.initial, simulator.members)
    if algorithm.global_model(cloud) is not None:
        step = _moving_to_models(algorithm, simulator)
        _check_weights("cloud", algorithm, *step)
    if algorithm.tiers == 3:
        message = algorithm.cloud_message(cloud, EDGES)[0]
        edge = algorithm.edge_start(message, CLIENTS)
        uploads = _real_uploads(algorithm, simulator)[0]

        def after(uploads: Tensor, weights: Tensor) -> Tensor:
            return algorithm.edge_upload(algorithm.edge_step(edge, uploads, weights, Clock(0)))

        _check_weights("edge", algorithm, after, uploads)


def sums_suffice_where_declared(algorithm: Algorithm) -> None:
    """Clients' server does the same with their mean in the place of every upload, if the class says so."""
    simulator = problem().simulator(algorithm)
    uploads = _real_uploads(algorithm, simulator)
    members = uploads.shape[-2]
    state, step, message = simulator.state.served.state, algorithm.cloud_step, algorithm.cloud_message
    if algorithm.tiers == 3:
        uploads = uploads[0]
        state = algorithm.edge_start(algorithm.cloud_message(state, EDGES)[0], members)
        step, message = algorithm.edge_step, algorithm.edge_message
    weights = torch.arange(members, dtype=uploads.dtype)  # the first has not replied
    mean = spread(weighted_mean(uploads, weights), members)
    pairs = [leaves(step(state, each, weights, Clock(0))) for each in (uploads, mean)]
    sent = message(step(state, uploads, weights, Clock(0)), members)
    suffices = all(
        bool((one - other).norm() <= _CLOSE * other.norm().clamp_min(1.0))
        for one, other in zip(*pairs, strict=True)
    ) and torch.equal(sent, sent[:1].expand_as(sent))
    if suffices != algorithm.needs_only_sums:
        raise CheckError(
            "sums: "
            + (
                "needs_only_sums is False, but the mean of all uploads gives the same."
                if suffices
                else "needs_only_sums is True, but clients' server reads single uploads, or tells clients "
                "different things; return False from needs_only_sums."
            )
        )


def _moving_to_models(algorithm: Algorithm, simulator: Simulator) -> tuple[Any, Tensor]:
    """The cloud's step as a function of uploads and weights, and real uploads."""
    uploads = _real_uploads(algorithm, simulator)
    state = simulator.state.served.state
    if algorithm.tiers == 3:
        edges = algorithm.edge_start(algorithm.cloud_message(state, EDGES), CLIENTS)
        weights = torch.ones(EDGES, CLIENTS, dtype=uploads.dtype)
        uploads = algorithm.edge_upload(algorithm.edge_step(edges, uploads, weights, Clock(0)))

    def after(uploads: Tensor, weights: Tensor) -> Tensor:
        model = algorithm.global_model(algorithm.cloud_step(state, uploads, weights, Clock(0)))
        assert model is not None
        return model

    return after, uploads


def _real_uploads(algorithm: Algorithm, simulator: Simulator) -> Tensor:
    """What clients really send in the first round."""
    task = _lent(simulator)
    result = algorithm.client_step(simulator.received(), simulator.state.personal, task, Clock(0))
    return dense(result.upload)


def _check_weights(tier: str, algorithm: Algorithm, after: Any, uploads: Tensor) -> None:
    """Compare how far each member's upload moves a server with what the member weighs."""
    members = uploads.shape[-2]
    weights = torch.ones(members, dtype=uploads.dtype)
    if algorithm.weighting == "size":
        weights = weights + torch.arange(members, dtype=uploads.dtype)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(uploads.shape[-1], generator=generator, dtype=uploads.dtype)
    before = after(uploads, weights)
    moves = []
    for member in range(members):
        changed = uploads.clone()
        changed[..., member, :] += _SMALL * direction
        moves.append(float((after(changed, weights) - before).norm()))
    total, expected = sum(moves), weights / weights.sum()
    if not total:
        raise CheckError(f"weights: no upload changes what the {tier} holds.")
    for move, share in zip(moves, expected.tolist(), strict=True):
        if abs(move / total - share) > _RATIO * max(expected.tolist()):
            raise CheckError(
                f"weights: weighting is {algorithm.weighting!r}, but a member of {share:.3f} of all weights "
                f"makes {move / total:.3f} of the {tier}'s mean; use weighted_mean."
            )


class _SecondStep(NamedTuple):
    """What a client's step makes of what it kept."""

    kept: Any  # after a first step
    changed: bool  # by the first step
    reads: bool  # whether the second step depends on it
    predicts_with_received: bool


def _second_step(algorithm: Algorithm, case: Problem) -> _SecondStep:
    """Two steps of all clients, the second also with a state that is not a number."""
    simulator = case.simulator(algorithm)
    start, received, task = simulator.state.personal, simulator.received(), _lent(simulator)
    clock = Clock(1, 1 if algorithm.tiers == 3 else 0)
    kept = _dense(algorithm.client_step(received, start, task, clock).personal)
    changed = bool(leaves(start)) and not _equal(start, kept)
    spoilt = tree_map(lambda tensor: torch.full_like(tensor, torch.nan), kept)
    right, wrong = (algorithm.client_step(received, each, task, clock) for each in (kept, spoilt))
    reads = not _equal((wrong.upload, wrong.personal), (right.upload, right.personal))
    predicted = algorithm.personalize(received, kept, task, clock)
    ignored = isinstance(predicted, Tensor | Factored) and _equal(predicted, received.expand(*task.lead, -1))
    return _SecondStep(kept, changed, reads, ignored)


def _models(method: Algorithm) -> list[Tensor]:
    """What clients received, then the models that they send, keep and predict with, in the first round."""
    simulator = problem().simulator(method)
    received, task = simulator.received(), _lent(simulator)
    result = method.client_step(received, simulator.state.personal, task, Clock(0))
    predicted = method.personalize(received, result.personal, _lent(simulator), Clock(1))
    size = simulator.task.network.d
    found = [received[..., :size]]
    for each in (result.upload, result.personal, predicted):
        known = isinstance(each, Tensor | Factored) and dense(each).shape[-1] >= size
        found.append(dense(each)[..., :size] if known else found[0])
    return found


def _watched(algorithm: Algorithm, clock: Clock) -> Watched:
    """The task of all clients after a step at this time."""
    simulator = problem().simulator(algorithm)
    task = _lent(simulator)
    fields = {each.name: getattr(task, each.name) for each in dataclasses.fields(Task)}
    watched = Watched(**fields | {"force_autograd": True})  # fast paths do not ask the task for gradients
    algorithm.client_step(simulator.received(), simulator.state.personal, watched, clock)
    return watched


def _same_draws(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def _lent(simulator: Simulator) -> Task:
    return replace(simulator.task, statistics=simulator.state.statistics)


def _dense(tree: Any) -> Any:
    """The state with every factored model built."""
    if isinstance(tree, Tensor | Factored):
        return dense(tree)
    return tuple_like(tree, [_dense(part) for part in tree])


def _equal(one: Any, other: Any) -> bool:
    """Whether all tensors are the same; NaN is the same as NaN."""
    return all(
        torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0))
        for first, second in zip(leaves(one), leaves(other), strict=True)
    )

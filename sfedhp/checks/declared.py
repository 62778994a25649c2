"""Checks that clients do what the class of a method declares: pulls, draws, and personal states."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.algorithms.steps import StepRule
from sfedhp.checks.problem import CheckError, Problem, check_is_dataclass, leaves, lent_task, problem
from sfedhp.core.factored import Factored, dense
from sfedhp.core.trees import tree_map
from sfedhp.core.types import Batch, Clock, tuple_like
from sfedhp.nn.losses import Loss
from sfedhp.nn.task import Task

_CLOSE = 1e-9
_PULLED = 0.02  # ηλ, at which K steps are nearly linear in λ
_SLACK = 1.1  # how much stronger or weaker than declared a pull may act


@dataclass
class Watched(Task):
    """A task that records which rows are drawn, and how often a gradient is computed."""

    drawn: list[Tensor] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)

    def take(
        self, rows: Tensor, real: Tensor, keys: Tensor, augment: bool = True, clients: Tensor | None = None
    ) -> Batch:
        """Record the rows, then call `Task.take`."""
        self.drawn.append(torch.where(real, rows, -1).sort(-1).values)
        return super().take(rows, real, keys, augment, clients)

    def gradient(self, model: Tensor | Factored, batch: Batch, loss: Loss | None = None) -> Tensor:
        """Count the call, then call `Task.gradient`."""
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
        if not any(after < before for before, after in gaps) and rule.sent:
            raise CheckError(f"the pull: a stronger {name} takes a client farther from what it received.")


def pull_is_as_strong_as_declared(algorithm: Algorithm) -> None:
    """On a linear loss, K steps end where the rate and the pull of `step_rules()` lead."""
    check_is_dataclass(algorithm)
    for rule in algorithm.step_rules():
        if not _is_plain_pull(rule):
            continue
        assert rule.pull is not None
        name, rate = rule.pull.name, rule.rate.value
        weak = _PULLED / rate
        free, pulled = (_distances(replace(algorithm, **{name: pull})) for pull in (1e-6 * weak, weak))
        strengths, holds = [], False
        for whole, shorter in zip(free, pulled, strict=True):
            steps = round(whole / rate)
            is_counted = steps > 1 and abs(whole / rate - steps) < 1e-3 and whole != shorter
            if is_counted and (rule.repeats is None or rule.repeats.value == steps):
                # Σ_k (1 − ηλ)^k of K steps, beside K without a pull
                declared = 1 - (1 - (1 - _PULLED) ** steps) / (steps * _PULLED)
                strength = (1 - shorter / whole) / declared
                # An implicit step is pulled at once, an explicit one from the second on.
                holds = holds or 1 / _SLACK < strength < _SLACK * (steps + 1) / (steps - 1)
                strengths.append(strength)
        if strengths and not holds:
            raise CheckError(
                f"the pull: {name} acts {strengths[0]:.2g} times as strongly as step_rules() declares: is "
                f"there a factor in the step? If it is another kind of pull, override step_rules()."
            )


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
    """A client's state changes, is read if and only if the class says so, and affects its predictions."""
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


class _SecondStep(NamedTuple):
    """The result of a client's second step, which starts from the state of the first."""

    kept: Any  # after a first step
    changed: bool  # by the first step
    reads: bool  # whether the second step depends on it
    predicts_with_received: bool


def _second_step(algorithm: Algorithm, case: Problem) -> _SecondStep:
    """Two steps of all clients; the second also with a state of NaN, to see whether it is read."""
    simulator = case.simulator(algorithm)
    start, received, task = simulator.state.personal, simulator.received(), lent_task(simulator)
    clock = Clock(1, 1 if algorithm.tiers == 3 else 0)
    kept = _dense(algorithm.client_step(received, start, task, clock).personal)
    changed = bool(leaves(start)) and not _equal(start, kept)
    spoilt = tree_map(lambda tensor: torch.full_like(tensor, torch.nan), kept)
    right, wrong = (algorithm.client_step(received, each, task, clock) for each in (kept, spoilt))
    reads = not _equal((wrong.upload, wrong.personal), (right.upload, right.personal))
    predicted = algorithm.personalize(received, kept, task, clock)
    ignored = isinstance(predicted, Tensor | Factored) and _equal(predicted, received.expand(*task.lead, -1))
    return _SecondStep(kept, changed, reads, ignored)


def _models(method: Algorithm, task: Task | None = None) -> list[Tensor]:
    """What clients received, then the models that they send, keep and predict with, in the first round."""
    simulator = problem().simulator(method)
    received, own = simulator.received(), lent_task(simulator)
    result = method.client_step(received, simulator.state.personal, task or own, Clock(0))
    predicted = method.personalize(received, result.personal, task or lent_task(simulator), Clock(1))
    size = simulator.task.network.d
    found = [received[..., :size]]
    for each in (result.upload, result.personal, predicted):
        known = isinstance(each, Tensor | Factored) and dense(each).shape[-1] >= size
        found.append(dense(each)[..., :size] if known else found[0])
    return found


class _Plane(Task):
    """Clients with a linear loss, which falls equally along every weight."""

    def gradient(self, model: Tensor | Factored, batch: Batch, loss: Loss | None = None) -> Tensor:
        return torch.ones_like(dense(model)) + self.weight_decay * dense(model)


def _is_plain_pull(rule: StepRule) -> bool:
    """Whether a rule is of plain gradient steps with a pull to what the client received."""
    plain = not (rule.nesterov or rule.clipped or (rule.momentum and rule.momentum.value))
    sparse = rule.sparsity is not None and rule.sparsity.value
    return plain and rule.pull is not None and rule.sent and rule.uses_data and not sparse


def _distances(method: Algorithm) -> list[float]:
    """How far down a plane the models are that clients send, keep and predict with after the first round."""
    simulator = problem().simulator(method)
    fields = {each.name: getattr(lent_task(simulator), each.name) for each in dataclasses.fields(Task)}
    plane = _Plane(**fields | {"force_autograd": True})
    received, *models = _models(method, plane)
    return [float((received - model).mean()) for model in models]


def _watched(algorithm: Algorithm, clock: Clock) -> Watched:
    """The task of all clients after a step at this time."""
    simulator = problem().simulator(algorithm)
    task = lent_task(simulator)
    fields = {each.name: getattr(task, each.name) for each in dataclasses.fields(Task)}
    watched = Watched(**fields | {"force_autograd": True})  # fast paths do not ask the task for gradients
    algorithm.client_step(simulator.received(), simulator.state.personal, watched, clock)
    return watched


def _same_draws(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def _dense(tree: Any) -> Any:
    """The state with every factored model built."""
    if isinstance(tree, Tensor | Factored):
        return dense(tree)
    return tuple_like(tree, [_dense(part) for part in tree])


def _equal(one: Any, other: Any) -> bool:
    """Whether all tensors are equal, with NaN equal to NaN."""
    return all(
        torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0))
        for first, second in zip(leaves(one), leaves(other), strict=True)
    )

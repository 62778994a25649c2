"""Steps as a loop over `torch.optim.SGD` takes them, of all clients at once, whatever their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from sfedhp.core.scalars import PerRun, Scalar, absent
from sfedhp.core.types import Batch, Clock
from sfedhp.core.vectors import smooth_l1_grad
from sfedhp.inner.descent import Descent
from sfedhp.nn.epochs import Epochs
from sfedhp.nn.stages import Stage, of_clients
from sfedhp.nn.task import Task


def sgd_steps(
    task: Task,
    clock: Clock,
    batch: Callable[[int], Batch],
    anchor: Tensor,
    start: Tensor,
    descent: Descent,
    first_epoch: int,
) -> Tensor:
    """θ (..., d) after the steps

        g = clip(∇ℓ(θ; D) + γ ∇φ_ρ(θ) + λ (θ − anchor)) + μ θ,   v ← m v + g,   θ ← θ − η v,

    where μ is the weight decay, which torch adds after clipping, and m the momentum. With epochs, a
    client whose mini-batches are used up stays where it is, and so do its running statistics.

    Args:
        task: of all clients; it gets the moved statistics.
        clock: when.
        batch: the mini-batch of this number; not used with epochs.
        anchor: (..., d), the center of the pull.
        start: (..., d), θ before the first step.
        descent: which steps to take.
        first_epoch: the number of the first epoch.
    """
    if not descent.epochs:

        def drawn(step: int) -> Batch:
            return batch(step) if descent.new_batch_each_step else batch(0).at_step(step)

        steps = _Steps(task, drawn, anchor, descent)
        return steps.take(range(descent.steps), start, None)[0]
    epochs = Epochs.of(task, clock, descent.epochs, first_epoch)
    # The last mini-batch of an epoch may have fewer real rows than any client has.
    own = replace(task, min_rows=0 if epochs.may_pad else task.min_rows)
    runs = int(any(isinstance(option, PerRun) for option in vars(descent).values()))
    if stages := epochs.stages(runs):
        point = _in_stages(stages, own, epochs, anchor, start, descent)
    else:
        steps = _Steps(own, epochs.batch, anchor, descent, may_be_done=epochs.may_pad)
        point, _ = steps.take(range(epochs.steps), start, None)
    task.statistics = own.statistics
    return point


def _in_stages(
    stages: list[Stage], task: Task, epochs: Epochs, anchor: Tensor, start: Tensor, descent: Descent
) -> Tensor:
    """The same for clients that take different numbers of steps: who is done leaves the stack."""
    lead, axis = task.lead, stages[0].clients.ndim - 1
    ends = start.expand(*lead, -1).clone(memory_format=torch.contiguous_format)
    moved = None if task.statistics is None else task.statistics.expand(*lead, -1).clone()

    def of(clients: Tensor, each: Tensor) -> Tensor:
        return of_clients(each.expand(*lead, -1), clients, lead)

    point, velocity = of(stages[0].clients, start), None
    statistics = None if moved is None else of(stages[0].clients, moved)
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        some = partial(of, stage.clients)
        own = replace(_without_rows(task, stage.clients.shape), statistics=statistics)
        options = replace(
            descent,
            sparsity=some(descent.sparsity) if isinstance(descent.sparsity, Tensor) else descent.sparsity,
            linear=None if descent.linear is None else some(descent.linear),
        )
        # Runs of a stack may hold different rows: then a client is done in one run before another.
        steps = _Steps(own, epochs.of_clients(stage.clients).batch, some(anchor), options, bool(axis))
        point, velocity = steps.take(stage.steps, point, velocity)
        left = 0 if after is None else after.clients.shape[-1]
        done = torch.unravel_index(stage.clients[..., left:], lead)
        ends[done] = point[..., left:, :]
        if moved is not None and own.statistics is not None:
            moved[done] = own.statistics[..., left:, :]
            statistics = own.statistics.narrow(axis, 0, left)
        point = point.narrow(axis, 0, left)
        velocity = None if velocity is None else velocity.narrow(axis, 0, left)
    task.statistics = moved
    return ends


def _without_rows(task: Task, lead: torch.Size) -> Task:
    """The task of a stack of this shape that computes gradients on rows which it is given."""

    def empty(tensor: Tensor) -> Tensor:
        return tensor.new_empty(()).expand(*lead, *tensor.shape[len(task.lead) :])

    return replace(task.map(empty), statistics=None)


@dataclass
class _Steps:
    """How clients step; the memory of a gradient becomes that of the model after the step."""

    task: Task
    batch: Callable[[int], Batch]  # of the step of this number
    anchor: Tensor
    descent: Descent
    may_be_done: bool = False  # whether some clients have no real rows in some mini-batches, and stay

    def take(self, steps: range, point: Tensor, velocity: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Take these steps; the models and their velocities after them."""
        task, descent = self.task, self.descent
        undecayed = replace(task, weight_decay=0.0)
        rate, momentum = (cast(float, factor) for factor in (descent.rate, descent.momentum))  # or a PerRun
        for step in steps:
            rows, statistics = self.batch(step), undecayed.statistics
            gradient = self._gradient(undecayed, point, rows)
            if absent(descent.momentum):
                change = gradient.mul_(rate)
            else:
                velocity = gradient if velocity is None else velocity.mul_(momentum).add_(gradient)
                change = descent.rate * velocity
            moved = torch.sub(point, change, out=change)
            if self.may_be_done:
                active = rows.real.any(-1, keepdim=True)
                moved = torch.where(active, moved, point)
                if statistics is not None and undecayed.statistics is not None:
                    undecayed.statistics = torch.where(active, undecayed.statistics, statistics)
            point = moved
        task.statistics = undecayed.statistics
        return point, velocity

    def _gradient(self, undecayed: Task, point: Tensor, rows: Batch) -> Tensor:
        """g of a step, in memory of its own."""
        descent, decay = self.descent, self.task.weight_decay
        gradient = undecayed.gradient(point, rows)
        if not absent(descent.proximity):
            gradient = gradient + descent.proximity * (point - self.anchor)
        if descent.sparse:
            gradient = gradient + descent.sparsity * smooth_l1_grad(point, descent.smoothing)
        gradient = descent.of(gradient)
        if not absent(descent.clip):
            gradient = _clipped(gradient, descent.clip)
        if decay:
            gradient = gradient + decay * point
            gradient = gradient if descent.part is None else torch.where(descent.part, gradient, 0.0)
        return gradient


def _clipped(gradient: Tensor, longest: Scalar) -> Tensor:
    """The gradient, shortened where its norm is above `longest`; torch's 1e-6 avoids a division by 0."""
    share: Tensor = longest / (gradient.norm(dim=-1, keepdim=True) + 1e-6)
    return gradient * share.clamp_max(1.0)

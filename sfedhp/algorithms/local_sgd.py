"""The options of a client's mini-batch SGD, which many methods share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.algorithms.steps import StepRule
from sfedhp.core.factored import dense
from sfedhp.core.options import Count, CountOrOff, Help, Rate, Share, Strength
from sfedhp.core.scalars import Scalar
from sfedhp.core.types import Batch, Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.epochs import Epochs
from sfedhp.nn.task import Task


class MiniBatch(NamedTuple):
    """The rows of a client's step, and the task that computes on them."""

    task: Task
    rows: Batch  # D
    here: Tensor | bool = True  # which clients (..., 1) have any; True: all

    def gradient(self, model: Tensor) -> Tensor:
        """∇ℓ(x; D); 0 for a client that has finished its epochs."""
        return self.only_here(self.task.gradient(model, self.rows))

    def only_here(self, step: Tensor) -> Tensor:
        """A step (..., n); 0 for a client that has finished its epochs."""
        return step if self.here is True else self.here * step


@dataclass(frozen=True)
class LocalSteps(Algorithm):
    """A method whose clients take gradient steps on their own rows, each on a new mini-batch."""

    local_rate: Annotated[Rate, Help("η, learning rate of a client's SGD steps")] = 0.05
    local_steps: Annotated[Count, Help("SGD steps per round, each on a new mini-batch")] = 20
    local_epochs: Annotated[
        CountOrOff, Help("passes over a client's rows per round, in place of local_steps; 0: off")
    ] = field(default=0, kw_only=True)

    def steps_made(self, task: Task) -> int | Tensor:
        """How many steps clients take in a round: one number, or with epochs (..., 1) of every client."""
        if not self.local_epochs:
            return self.local_steps
        batch = task.batch_size or task.rows
        return self.local_epochs * ((task.sizes + batch - 1) // batch).clamp_min(1).unsqueeze(-1)

    def minibatches(self, task: Task, clock: Clock) -> Iterator[MiniBatch]:
        """The mini-batches of a round, for methods whose steps `sgd` cannot take.

        With epochs, a small client finishes before others; its running statistics then do not change.
        """
        if not self.local_epochs:
            yield from (MiniBatch(task, task.batch(clock, step)) for step in range(self.local_steps))
            return
        epochs = Epochs.of(task, clock, self.local_epochs)
        view = replace(task, min_rows=0 if epochs.may_pad else task.min_rows)
        for step in range(epochs.steps):
            rows, before = epochs.batch(step), view.statistics
            here = rows.real.any(-1, keepdim=True)
            yield MiniBatch(view, rows, here)
            if before is not None and view.statistics is not None:
                task.statistics = view.statistics = torch.where(here, view.statistics, before)

    def step_rules(self) -> tuple[StepRule, ...]:
        """The rule of the gradient steps."""
        return (StepRule("a local step", self.option("local_rate")),)


@dataclass(frozen=True)
class LocalSGD(LocalSteps):
    """A method whose clients run SGD on their own rows, each step on a new mini-batch."""

    pulled_by: ClassVar[str] = ""  # the option that pulls the steps to their anchor

    momentum: Annotated[Share, Help("momentum of a client's SGD, from zero in each round")] = field(
        default=0.0, kw_only=True
    )
    clip: Annotated[
        Strength,
        Help("longest gradient of a client; longer ones are scaled down; 0: off"),
    ] = field(default=0.0, kw_only=True)

    def sgd(
        self,
        anchor: Tensor,
        task: Task,
        clock: Clock,
        proximity: Scalar = 0.0,
        *,
        start: Tensor | None = None,
        steps: int = 0,
        first_batch: int = 0,
        part: Tensor | None = None,
        linear: Tensor | None = None,
    ) -> Tensor:
        """The model after the SGD steps of a round on ℓ(x; D) + ⟨y, x⟩ + μ/2 ‖x − anchor‖².

        Args:
            anchor: (..., d), and where the steps start.
            task: of the client, or of a stack of them.
            clock: decides the mini-batches.
            proximity: μ.
            start: where the steps start instead.
            steps: how many; 0: `local_steps`. With `local_epochs` it is not used.
            first_batch: the number of the first mini-batch, or epoch.
            part: (d,) bool, the weights that move; None: all.
            linear: y, (..., d).
        """
        descent = replace(self.descent(proximity), part=part, linear=linear)
        descent = replace(descent, steps=steps) if steps else descent
        return dense(minimize(task, clock, anchor, descent, start=start, first_batch=first_batch))

    def descent(self, proximity: Scalar = 0.0) -> Descent:
        """The SGD steps of a round on ℓ(x; D), or on ℓ(x; D) + μ/2 ‖x − w‖² with a proximity μ."""
        return Descent(
            self.local_steps,
            self.local_rate,
            proximity,
            new_batch_each_step=True,
            epochs=self.local_epochs,
            momentum=self.momentum,
            clip=self.clip,
        )

    def step_rules(self) -> tuple[StepRule, ...]:
        """The rule of the SGD steps, pulled by the option that the method names."""
        pull = self.option(self.pulled_by) if self.pulled_by else None
        momentum, clipped = self.option("momentum"), self.option("clip").value > 0
        rate = self.option("local_rate")
        return (StepRule("a local step", rate, pull, momentum=momentum, clipped=clipped),)

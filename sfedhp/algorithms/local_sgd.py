"""The options of a client's mini-batch SGD, which many methods share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sfedhp.algorithms.base import Algorithm
from sfedhp.algorithms.steps import Option, StepRule
from sfedhp.core.options import Count, CountOrOff, Help, Rate, Share, Strength
from sfedhp.core.scalars import Scalar
from sfedhp.inner.minimize import Descent


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    """A method whose clients run SGD on their own rows, each step on a new mini-batch."""

    local_rate: Annotated[Rate, Help("η, learning rate of a client's SGD steps")] = 0.05
    local_steps: Annotated[Count, Help("SGD steps per round, each on a new mini-batch")] = 20
    local_epochs: Annotated[
        CountOrOff, Help("passes over a client's rows per round, in place of local_steps; 0: off")
    ] = field(default=0, kw_only=True)
    momentum: Annotated[Share, Help("momentum of a client's SGD, from zero in each round")] = field(
        default=0.0, kw_only=True
    )
    clip: Annotated[Strength, Help("longest gradient of a client; longer ones are scaled down; 0: off")] = (
        field(default=0.0, kw_only=True)
    )

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
        """The rule of the SGD steps, which have no pull."""
        return (self.local_step_rule(),)

    def local_step_rule(self, pull: Option | None = None) -> StepRule:
        """A step of the SGD, for `step_rules`."""
        momentum, clipped = self.option("momentum"), self.option("clip").value > 0
        return StepRule("a local step", self.option("local_rate"), pull, momentum=momentum, clipped=clipped)

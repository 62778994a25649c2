"""Finishing steps: a client fine-tunes a model before it predicts with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.algorithms.steps import StepRule
from sfedhp.core.factored import Factored, dense
from sfedhp.core.options import CountOrOff, Help, Rate, Strength
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.task import Task


@dataclass(frozen=True)
class Finishing(Algorithm):
    """A method with the option that clients take fine-tuning steps before they predict.

    These steps change only the model that is evaluated and saved. It is never sent, and training continues
    from the model before them, so all other numbers of a run stay the same.
    """

    finish_steps: Annotated[
        CountOrOff,
        Help("a client's own SGD steps for the model it predicts with, never sent; 0: off"),
    ] = field(default=0, kw_only=True)
    finish_rate: Annotated[Rate, Help("learning rate of the finishing steps")] = field(
        default=0.05, kw_only=True
    )
    finish_rows: Annotated[
        Literal["batch", "all"], Help("rows of each finishing step: a new mini-batch, or all of the client")
    ] = field(default="batch", kw_only=True)
    finish_proximity: Annotated[
        Strength, Help("μ, pull of the finishing steps towards the model that they start from")
    ] = field(default=0.0, kw_only=True)

    def finished(self, model: Tensor | Factored, task: Task, clock: Clock, near: Tensor | None = None) -> Any:
        """SGD on ℓ(x; D) + μ/2 ‖x − a‖² from a model, a new D each step; a is `near`, or the model."""
        if not self.finish_steps:
            return model
        descent = Descent(
            self.finish_steps, self.finish_rate, self.finish_proximity, new_batch_each_step=True
        )
        start = dense(model)
        rows = task if self.finish_rows == "batch" else replace(task, batch_size=0)
        anchor = start if near is None else near
        return minimize(rows, clock, anchor, descent, start=start, role="finish")

    def step_rules(self) -> tuple[StepRule, ...]:
        """The steps of the method, and the finishing steps."""
        return (*super().step_rules(), *self.finishing_rules())

    def finishing_rules(self) -> tuple[StepRule, ...]:
        """The rule of the finishing steps, for methods that override `step_rules`; empty without them."""
        pull = self.option("finish_proximity")
        rate, pulled = self.option("finish_rate"), pull if pull.value else None
        return (StepRule("a finishing step", rate, pulled, sent=False),) if self.finish_steps else ()

"""Per-FedAvg, Algorithm 1 of:

Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach.
A. Fallah, A. Mokhtari, A. Ozdaglar. NeurIPS 2020.
https://arxiv.org/abs/2002.07948
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

from torch import Tensor

from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.algorithms.steps import StepRule
from sfedhp.core.options import Count, Help, Rate, Strength
from sfedhp.core.types import Batch, Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """Learn a global model that is good for a client after one step on that client's training data."""

    scheduled_rates = ("meta_rate",)  # α is a part of what is learnt
    adaptation_rate: Annotated[Strength, Help("α, learning rate of the single adaptation step")] = 0.05
    meta_rate: Annotated[Rate, Help("β, learning rate of the meta steps")] = 0.01
    local_steps: Annotated[Count, Help("meta steps per round, each on two new mini-batches")] = 20
    order: Annotated[
        Literal["first", "second"], Help("order of the meta gradient; second: with a Hessian-vector product")
    ] = "first"

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w ← w − β (I − α ∇²ℓ(w; D)) ∇ℓ(w − α ∇ℓ(w; D); D′); the first order leaves the Hessian out."""
        if self.order == "first":
            descent = Descent(self.local_steps, self.meta_rate, lookahead=self.adaptation_rate)
            return ClientResult(minimize(task, clock, received, descent))
        model = received
        for step in range(self.local_steps):
            batch, other = (task.batch(clock, number) for number in (2 * step, 2 * step + 1))
            gradient = task.gradient(self._adapt(model, task, batch), other)
            hessian_product = task.curvature(model, batch, gradient)
            model = model - self.meta_rate * (gradient - self.adaptation_rate * hessian_product)
        return ClientResult(model)

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Tensor:
        """One α-step from the new global model on a training batch, never on test data."""
        return self._adapt(received, task, task.batch(clock, role="adapt"))

    def step_rules(self) -> tuple[StepRule, ...]:
        """The adaptation step (α), and the meta step from the start point (β)."""
        return (
            StepRule("the adapting step", self.option("adaptation_rate")),
            StepRule("the step from the start point", self.option("meta_rate")),
        )

    def _adapt(self, model: Tensor, task: Task, batch: Batch) -> Tensor:
        return model - self.adaptation_rate * task.gradient(model, batch)

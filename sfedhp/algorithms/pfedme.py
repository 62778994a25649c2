"""pFedMe, Algorithm 1 of:

Personalized Federated Learning with Moreau Envelopes.
C. T. Dinh, N. H. Tran, T. D. Nguyen. NeurIPS 2020.
https://arxiv.org/abs/2006.08848
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.finish import Finishing
from sfedhp.algorithms.server_step import ServerSteps
from sfedhp.algorithms.steps import StepRule
from sfedhp.core.factored import dense
from sfedhp.core.options import Count, Help, Rate, Strength
from sfedhp.core.types import Clock
from sfedhp.core.vectors import toward, weighted_mean
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class PFedMe(ServerSteps, Finishing):
    """Every client keeps a personal model near the global one; its loss is a Moreau envelope."""

    weighting = "equal"
    client_proximity: Annotated[
        Strength, Help("λ, pull of a personal model towards the client's copy of the global model")
    ] = 15.0
    personal_rate: Annotated[Rate, Help("learning rate of the personal model's steps")] = 0.05
    local_rate: Annotated[Rate, Help("η, learning rate of the client's copy of the global model")] = 0.05
    local_rounds: Annotated[Count, Help("R, mini-batches per round")] = 20
    personal_steps: Annotated[Count, Help("K, steps on each mini-batch; odd, or with ηλ < 1")] = 5
    cloud_mixing: Annotated[
        Rate, Help("β, how far the global model moves towards the mean of the clients")
    ] = 1.0

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """θ_i before the first round."""
        return initial

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """R times: θ near w_i on one mini-batch, then w_i a step towards θ."""
        descent = Descent(self.personal_steps, self.personal_rate, self.client_proximity)
        model, theta = received, None
        for turn in range(self.local_rounds):
            # θ ≈ argmin ℓ(θ; D) + λ/2 ‖θ − w_i‖², from the last θ of this round
            theta = dense(minimize(task, clock, model, descent, start=theta, first_batch=turn))
            # w_i ← w_i − ηλ (w_i − θ)
            model = toward(model, theta, self.local_rate * self.client_proximity)
        return ClientResult(model, theta)

    def cloud_goal(self, model: Tensor, uploads: Upload, weights: Tensor) -> Tensor:
        """w ← (1 − β) w + β mean_i w_i."""
        return toward(model, weighted_mean(uploads, weights), self.cloud_mixing)

    @property
    def needs_personal_state(self) -> bool:
        """False: every round begins at w; θ_i is only used to predict."""
        return False

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """θ_i of this round, the personal model, after the finishing steps if there are any."""
        return self.finished(personal, task, clock)

    def step_rules(self) -> tuple[StepRule, ...]:
        """The rules of the K steps of θ_i on each mini-batch, and of the step of w_i towards θ_i."""
        pull = self.option("client_proximity")
        return (
            StepRule(
                "a personal model's step",
                self.option("personal_rate"),
                pull,
                repeats=self.option("personal_steps"),
                new_batch_each_step=False,
            ),
            StepRule(
                "the step of the client's global model", self.option("local_rate"), pull, uses_data=False
            ),
            *self.finishing_rules(),
        )

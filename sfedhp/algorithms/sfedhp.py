"""sFedHP, Algorithm 1 of:

Sparse Federated Learning with Hierarchical Personalization Models.
X. Liu, Q. Wang, Y. Shao, Y. Li. IEEE Internet of Things Journal, 2024.
https://arxiv.org/abs/2203.13517
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.edge_drift import DriftCorrection
from sfedhp.algorithms.finish import Finishing
from sfedhp.algorithms.steps import StepRule
from sfedhp.core.factored import Factored, dense
from sfedhp.core.options import Bounds, Count, CountOrOff, Help, Rate, Strength
from sfedhp.core.scalars import Scalar, absent
from sfedhp.core.types import Clock
from sfedhp.core.vectors import smooth_l1_grad, soft_threshold, spread, toward, weighted_mean
from sfedhp.inner.descent import Descent, Penalty, Solver
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


class Edge(NamedTuple):
    """The state of an edge within a cloud round."""

    model: Tensor  # w_i
    personal: Tensor  # φ_i
    centers: Tensor | tuple[()]  # φ_ij (..., members, d) if anchor = "client", otherwise empty
    correction: Tensor | tuple[()] = ()  # y_i if drift_correction is on, otherwise empty


class Client(NamedTuple):
    """The state of a client whose finishing steps are pulled to its edge's model."""

    theta: Tensor | Factored  # θ_ij
    edge: Tensor  # φ_i, as received last


@dataclass(frozen=True)
class SFedHP(DriftCorrection, Finishing):
    """Clients keep sparse models near their edge's model, and edges keep models near the cloud's."""

    tiers = 3
    weighting = "equal"
    scheduled_rates = ("edge_rate",)  # η₂ only solves the inner problem
    edge_rounds: Annotated[Count, Help("R, edge rounds per cloud round")] = 20
    personal_steps: Annotated[
        Count, Help("K, steps of the personal model on each mini-batch; odd, or with η₂λ₁ < 1")
    ] = 5
    client_proximity: Annotated[
        Rate,
        Help("λ₁, pull between a client's and its edge's personal model"),
    ] = 20.0
    edge_proximity: Annotated[Rate, Help("λ₂, pull between an edge's personal and its global model")] = 20.0
    client_sparsity: Annotated[Strength, Help("γ₁, smooth ℓ1 penalty on a client's model")] = 0.0
    edge_sparsity: Annotated[Strength, Help("γ₂, smooth ℓ1 penalty on an edge's global model")] = 0.0
    smoothing: Annotated[Rate, Help("ρ, width of the smoothing of ℓ1 at zero")] = 6e-5
    edge_rate: Annotated[Rate, Help("η₁, learning rate of the edge's global model")] = 0.05
    personal_rate: Annotated[Rate, Help("η₂, learning rate of the personal model's steps")] = 0.05
    cloud_mixing: Annotated[
        Rate,
        Help("β, how far the global model moves towards the mean of the edges"),
    ] = 1.0
    start: Annotated[
        Literal["anchor", "carried"], Help("where θ starts: at φ_i, or at the last θ of this cloud round")
    ] = "anchor"
    anchor: Annotated[
        Literal["edge", "client"], Help("the model θ is pulled towards: φ_i, or the client's own φ_ij")
    ] = "edge"
    solver: Annotated[Solver, Help("plain gradient or Nesterov steps for the inner problem")] = "gradient"
    tolerance: Annotated[
        float, Bounds(0), Help("ν, stop the inner steps at ‖∇H‖² ≤ ν; 0: always K steps")
    ] = 0.0
    penalty: Annotated[
        Penalty, Help("smooth ℓ1, or exact ℓ1 by its proximal step, which gives exact zeros")
    ] = "smooth"
    sparsity_floor: Annotated[
        float, Bounds(0, 1), Help("γ₁ is off for a client whose last θ has a lower density; 0: never off")
    ] = 0.2
    edge_sparsity_rounds: Annotated[
        CountOrOff, Help("cloud rounds in which γ₂ acts, from the first on; 0: all")
    ] = 100
    finish_near: Annotated[
        Literal["client", "edge"],
        Help("what the finishing steps are pulled towards: θ_ij, where they start, or the last φ_i received"),
    ] = field(default="client", kw_only=True)

    def cloud_goal(self, model: Tensor, uploads: Upload, weights: Tensor) -> Tensor:
        """w ← (1 − β) w + β/S Σ w_i."""
        return toward(model, weighted_mean(uploads, weights), self.cloud_mixing)

    def edge_start(self, received: Tensor, members: int) -> Edge:
        """Both of the edge's models start from the cloud's: w_i = φ_i = w."""
        model, correction = received.chunk(2, -1) if self.drift_correction else (received, ())
        return Edge(model, model, spread(model, members) if self.anchor == "client" else (), correction)

    def edge_message(self, state: Edge, members: int) -> Tensor:
        """φ_i to every client, or each client's own φ_ij."""
        if isinstance(state.centers, Tensor):
            # Differs from the paper: Algorithm 1 sends φ_i; eq. (H-min) centers the problem at φ_ij.
            return state.centers
        return spread(state.personal, members)

    def client_start(self, initial: Tensor, task: Task) -> Tensor | Client:
        """θ_ij before the first round."""
        return Client(initial, initial) if self._keeps_edge else initial

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """θ_ij ≈ argmin ℓ(θ; D) + γ₁ φ_ρ(θ) + λ₁/2 ‖θ − φ_i‖² by K steps on one mini-batch."""
        descent = Descent(
            steps=self.personal_steps,
            rate=self.personal_rate,
            proximity=self.client_proximity,
            sparsity=self._client_sparsity(personal, task),
            smoothing=self.smoothing,
            penalty=self.penalty,
            solver=self.solver,
            tolerance=self.tolerance,
        )
        carried = self.start == "carried" and clock.edge_round > 0
        start = _theta(personal) if carried else None
        theta = minimize(task, clock, received, descent, start=start, factored=True)
        return ClientResult(theta, Client(theta, received) if self._keeps_edge else theta)

    def edge_step(self, state: Edge, uploads: Upload, weights: Tensor, clock: Clock) -> Edge:
        """Compute φ_i from the clients' θ_ij, then move w_i a step towards φ_i."""
        own, pull = self.client_proximity, self.edge_proximity
        centers: Tensor | tuple[()] = ()
        if isinstance(state.centers, Tensor):
            each = (own * dense(uploads) + pull * spread(state.model, weights.shape[-1])) / (own + pull)
            centers = torch.where(weights.unsqueeze(-1) > 0, each, state.centers)
        # φ_i ← mean_j φ_ij with φ_ij = (λ₁ θ_ij + λ₂ w_i)/(λ₁ + λ₂)
        personal = toward(state.model, weighted_mean(uploads, weights), own / (own + pull))
        # w_i ← w_i − η₁ [λ₂ (w_i − φ_i) + γ₂ ∇φ_ρ(w_i)]
        model = toward(state.model, personal, self.edge_rate * pull)
        if isinstance(state.correction, Tensor):
            model = model - self.edge_rate * state.correction  # beyond the paper: + y_i in the brackets
        if absent(self.edge_sparsity):
            return Edge(model, personal, centers, state.correction)
        sparsity = self._edge_sparsity(state.model, clock)
        if self.penalty == "l1":
            model = soft_threshold(model, self.edge_rate * sparsity)
        else:
            model = model - self.edge_rate * sparsity * smooth_l1_grad(state.model, self.smoothing)
        return Edge(model, personal, centers, state.correction)

    def edge_upload(self, state: Edge) -> Tensor:
        """w_i, the edge's copy of the global model, and the received y_i."""
        if isinstance(state.correction, Tensor):
            return torch.cat([state.model, state.correction], -1)
        return state.model

    @property
    def drift_time(self) -> Scalar:
        """η₁ R, the sum of the rates of an edge's steps in a cloud round."""
        return self.edge_rate * self.edge_rounds

    def edge_model(self, state: Edge) -> Tensor:
        """φ_i, the edge's personal model."""
        return state.personal

    @property
    def needs_personal_state(self) -> bool:
        """True if the next θ_ij starts at the last one, or if its density decides whether γ₁ is off."""
        return self.start == "carried" or not absent(self.client_sparsity)

    @property
    def needs_only_sums(self) -> bool:
        """False with anchor = "client": an edge then keeps φ_ij of each client, which follows from θ_ij."""
        return self.anchor == "edge"

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """θ_ij of this round, the personal model, after the finishing steps if there are any."""
        near = personal.edge if isinstance(personal, Client) else None
        return self.finished(_theta(personal), task, clock, near)

    def step_rules(self) -> tuple[StepRule, ...]:
        """The rules of the K steps of θ_ij on one mini-batch, and of the step of w_i towards φ_i."""
        return (
            StepRule(
                "a personal model's step",
                self.option("personal_rate"),
                self.option("client_proximity"),
                self.option("client_sparsity"),
                self.option("personal_steps"),
                new_batch_each_step=False,
                nesterov=self.solver == "nesterov",
            ),
            StepRule(
                "the edge's step",
                self.option("edge_rate"),
                self.option("edge_proximity"),
                self.option("edge_sparsity"),
                uses_data=False,
            ),
            *self.finishing_rules(),
        )

    @property
    def _keeps_edge(self) -> bool:
        """Whether a client keeps φ_i, for its finishing steps."""
        return self.finish_near == "edge" and self.finish_steps > 0

    def _client_sparsity(self, personal: Any, task: Task) -> Scalar | Tensor:
        """γ₁, but 0 for a client whose last θ_ij is sparser than the floor."""
        if absent(self.client_sparsity) or absent(self.sparsity_floor):
            return self.client_sparsity
        density = task.density(_theta(personal)).unsqueeze(-1)
        return self.client_sparsity * (density >= self.sparsity_floor).to(density.dtype)

    def _edge_sparsity(self, model: Tensor, clock: Clock) -> Tensor:
        """γ₂ (..., 1), but 0 after the first `edge_sparsity_rounds` cloud rounds."""
        sparsity = self.edge_sparsity * torch.ones_like(model[..., :1])
        if not self.edge_sparsity_rounds:
            return sparsity
        acting = clock.cloud_round < self.edge_sparsity_rounds
        if isinstance(acting, Tensor):  # the round is a tensor if a CUDA graph replays this step
            return torch.where(acting, sparsity, 0.0)
        return sparsity if acting else torch.zeros_like(sparsity)


def _theta(personal: Any) -> Any:
    """θ_ij from a client's state."""
    return personal.theta if isinstance(personal, Client) else personal

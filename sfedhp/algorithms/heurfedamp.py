"""HeurFedAMP, Section 4 of:

Personalized Cross-Silo Federated Learning on Non-IID Data.
Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang. AAAI 2021.
https://arxiv.org/abs/2007.03797
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.factored import dense
from sfedhp.core.options import Help, Share, Strength
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class HeurFedAMP(LocalSGD):
    """Every client gets its own cloud model: a mean that gives more weight to clients with similar models."""

    state_per_member = True
    pulled_by = "proximity"

    proximity: Annotated[Strength, Help("λ/α, pull of a client towards its cloud model")] = 0.1
    self_weight: Annotated[Share, Help("ξ_ii, weight of a client's own model in its cloud model")] = 0.5
    attention: Annotated[
        Strength, Help("σ, how strongly similarity decides the weights of the other models")
    ] = 10.0

    def cloud_start(self, initial: Tensor, members: int) -> Tensor:
        """The last w_j of every client."""
        return spread(initial, members).clone()

    def cloud_message(self, state: Tensor, members: int) -> Tensor:
        """u_i = Σ_j ξ_ij w_j."""
        if members == 1:
            return state  # a lone client gets its own model back
        own = torch.eye(members, dtype=state.dtype, device=state.device)
        unit = normalize(state, dim=-1)
        # ξ_ij ∝ exp(σ cos(w_i, w_j)) for j ≠ i, together 1 − ξ_ii
        alike = (self.attention * (unit @ unit.mT)).masked_fill(own > 0, -torch.inf).softmax(-1)
        mixing = self.self_weight * own.expand_as(alike) + (1 - self.self_weight) * alike
        return mixing @ state

    def cloud_step(self, state: Tensor, uploads: Upload, weights: Tensor, clock: Clock) -> Tensor:
        """Store the models that arrived; an absent client's last model stays."""
        return torch.where(weights.unsqueeze(-1) > 0, dense(uploads), state)

    def global_model(self, state: Tensor) -> None:
        """None: every client has its own cloud model."""

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """w_i before the first round."""
        return initial

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD on ℓ(x; D) + λ/(2α) ‖x − u_i‖², from u_i, a new D each step."""
        model = minimize(task, clock, received, self.descent(self.proximity))
        return ClientResult(model, model)

    @property
    def needs_personal_state(self) -> bool:
        """False: every round begins at u_i; w_i is only used to predict."""
        return False

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """w_i of this round, the model the client uploaded."""
        return personal

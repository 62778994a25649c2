"""FedDyn, Algorithm 1 of:

Federated Learning Based on Dynamic Regularization.
D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama. ICLR 2021.
https://arxiv.org/abs/2111.04263
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, final

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.options import Help, Rate
from sfedhp.core.types import Clock
from sfedhp.core.vectors import weighted_mean
from sfedhp.nn.task import Task


class Server(NamedTuple):
    """What the cloud holds."""

    model: Tensor  # θ, (..., d)
    correction: Tensor  # h, (..., d)
    members: Tensor  # m, (..., 1)


@final
@dataclass(frozen=True)
class FedDyn(LocalSGD):
    """FedProx with a linear term that each client and the cloud learn, so that both agree on one minimum."""

    weighting = "equal"
    proximity: Annotated[Rate, Help("α, pull of a client towards the global model")] = 0.1

    def cloud_start(self, initial: Tensor, members: int) -> Server:
        """θ, and h = 0."""
        return Server(initial, torch.zeros_like(initial), initial.new_full((*initial.shape[:-1], 1), members))

    def cloud_step(self, state: Server, uploads: Upload, weights: Tensor, clock: Clock) -> Server:
        """h ← h − α/m Σ_{k ∈ P} (θ_k − θ), then θ ← mean_{k ∈ P} θ_k − h/α."""
        mean, present = weighted_mean(uploads, weights), (weights > 0).sum(-1, keepdim=True)
        correction = state.correction - self.proximity * (present / state.members * (mean - state.model))
        return Server(mean - correction / self.proximity, correction, state.members)

    def global_model(self, state: Server) -> Tensor:
        """θ."""
        return state.model

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """∇L_k(θ_k) = 0."""
        return torch.zeros_like(initial)

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD on ℓ(x; D) − ⟨∇L_k, x⟩ + α/2 ‖x − θ‖² from θ; then ∇L_k ← ∇L_k − α (θ_k − θ)."""
        model = self.sgd(received, task, clock, self.proximity, linear=-personal)
        return ClientResult(model, personal - self.proximity * (model - received))

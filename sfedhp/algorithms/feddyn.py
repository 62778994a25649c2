"""FedDyn, Algorithm 1 of:

Federated Learning Based on Dynamic Regularization.
D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama. ICLR 2021.
https://arxiv.org/abs/2111.04263
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.control import Controlled, GradientControl
from sfedhp.core.options import Help, Rate
from sfedhp.core.types import Clock
from sfedhp.core.vectors import weighted_mean
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedDyn(GradientControl):
    """FedProx with a linear term that clients and cloud learn, so that all agree on one minimum."""

    pulled_by = "proximity"

    proximity: Annotated[Rate, Help("α, pull of a client towards the global model")] = 0.1

    def cloud_step(self, state: Controlled, uploads: Upload, weights: Tensor, clock: Clock) -> Controlled:
        """h ← h − α/m Σ_{k ∈ P} (θ_k − θ), then θ ← mean_{k ∈ P} θ_k − h/α."""
        mean, present = weighted_mean(uploads, weights), (weights > 0).sum(-1, keepdim=True)
        correction = state.control - self.proximity * (present / state.members * (mean - state.model))
        return Controlled(mean - correction / self.proximity, correction, state.members)

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD on ℓ(x; D) − ⟨∇L_k, x⟩ + α/2 ‖x − θ‖² from θ; then ∇L_k ← ∇L_k − α (θ_k − θ)."""
        model = self.sgd(received, task, clock, self.proximity, linear=-personal)
        return ClientResult(model, personal - self.proximity * (model - received))

"""FedAvg, Algorithm 1 of:

Communication-Efficient Learning of Deep Networks from Decentralized Data.
H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. AISTATS 2017.
https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.server_step import Server, ServerState, ServerStep
from sfedhp.core.options import Help, Rate, Share, Strength
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """Clients run SGD from the global model on their own data; the cloud averages their models."""

    server: Annotated[
        Server,
        Help("what the cloud does with the mean of the models: take it, or a step of FedOpt towards it"),
    ] = field(default="none", kw_only=True)
    server_rate: Annotated[Strength, Help("rate of the server's step; 0: 1 for momentum, 0.01 for adam")] = (
        field(default=0.0, kw_only=True)
    )
    server_beta1: Annotated[Share, Help("β₁, momentum of the server")] = field(default=0.9, kw_only=True)
    server_beta2: Annotated[Share, Help("β₂ of the server's adam, decay of the squared changes")] = field(
        default=0.99, kw_only=True
    )
    server_tau: Annotated[Rate, Help("τ of the server's adam, added to the root of the squares")] = field(
        default=1e-3, kw_only=True
    )

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w_k ← w_k − η ∇ℓ(w_k; D), from w, a new D each step."""
        return ClientResult(minimize(task, clock, received, self.descent()))

    def cloud_start(self, initial: Tensor, members: int) -> Tensor | ServerState:
        """w, with what a server step keeps."""
        return initial if self.server == "none" else self._server_step.start(initial)

    def cloud_message(self, state: Tensor | ServerState, members: int) -> Tensor:
        """w."""
        return spread(self.global_model(state), members)

    def cloud_step(
        self, state: Tensor | ServerState, uploads: Upload, weights: Tensor, clock: Clock
    ) -> Tensor | ServerState:
        """w ← Σ_k n_k w_k / Σ_k n_k, or a server step towards it."""
        mean = weighted_mean(uploads, weights)
        return self._server_step.step(state, mean) if isinstance(state, ServerState) else mean

    def global_model(self, state: Tensor | ServerState) -> Tensor:
        """w."""
        return state.model if isinstance(state, ServerState) else state

    @property
    def _server_step(self) -> ServerStep:
        return ServerStep(
            self.server, self.server_rate, self.server_beta1, self.server_beta2, self.server_tau
        )

"""Training alone: the baseline without a federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.factored import dense
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class Local(LocalSGD):
    """Every client trains its own model on its own rows; nothing is sent."""

    federated = False

    def cloud_step(self, state: Tensor, uploads: Upload, weights: Tensor, clock: Clock) -> Tensor:
        """The initial model, because clients upload nothing."""
        return state

    def global_model(self, state: Tensor) -> None:
        """None: every client has only its own model."""

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """x_k before the first round, the same for all clients."""
        return initial

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """x_k ← x_k − η ∇ℓ(x_k; D), from the x_k of the last round, a new D each step."""
        return ClientResult(received, dense(minimize(task, clock, personal, self.descent())))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """The client's own model x_k, which is never sent."""
        return personal

"""Ditto, Algorithm 1 of:

Ditto: Fair and Robust Federated Learning Through Personalization.
T. Li, S. Hu, A. Beirami, V. Smith. ICML 2021.
https://arxiv.org/abs/2012.04221
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.options import Help, Strength
from sfedhp.core.types import Clock
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class Ditto(UnderEdges, LocalSGD):
    """FedAvg, and a personal model for each client that is pulled to the global one."""

    pulled_by = "proximity"

    proximity: Annotated[Strength, Help("λ, pull of a client's own model towards the global one")] = 0.1

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """v_k before the first round."""
        return initial

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """FedAvg's steps from w, and on the same D: v_k ← v_k − η (∇ℓ(v_k; D) + λ (v_k − w))."""
        upload = self.sgd(received, task, clock)
        return ClientResult(upload, self.sgd(received, task, clock, self.proximity, start=personal))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """v_k, the client's own model."""
        return personal

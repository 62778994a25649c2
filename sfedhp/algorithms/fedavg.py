"""FedAvg, Algorithm 1 of:

Communication-Efficient Learning of Deep Networks from Decentralized Data.
H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. AISTATS 2017.
https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """Clients run SGD from the global model on their own data; the cloud averages their models."""

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w_k ← w_k − η ∇ℓ(w_k; D), from w, a new D each step."""
        return ClientResult(minimize(task, clock, received, self.descent()))

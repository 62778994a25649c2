"""FedAvg, Algorithm 1 of:

Communication-Efficient Learning of Deep Networks from Decentralized Data.
H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. AISTATS 2017.
https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.finish import Finishing
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.server_step import ServerSteps
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@dataclass(frozen=True)
class FedAvg(ServerSteps, Finishing, LocalSGD):
    """Clients run SGD from the global model on their own data; the cloud averages their models."""

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w_k ← w_k − η ∇ℓ(w_k; D), from w, a new D each step; the mean is the default, weighted by size."""
        return ClientResult(minimize(task, clock, received, self.descent()))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """w after the finishing steps, if there are any: fine-tuned FedAvg."""
        return self.finished(received, task, clock) if self.finish_steps else None

"""FedAvg, Algorithm 1 of:

Communication-Efficient Learning of Deep Networks from Decentralized Data.
H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. AISTATS 2017.
https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.core.options import Count, Help, Rate
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Clients run SGD from the global model on their own data; the cloud averages their models."""

    local_rate: Annotated[Rate, Help("η, learning rate of a client's SGD steps")] = 0.05
    local_steps: Annotated[Count, Help("SGD steps per round, each on a new mini-batch")] = 20

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w_k ← w_k − η ∇ℓ(w_k; D), from w, a new D each step."""
        descent = Descent(self.local_steps, self.local_rate, new_batch_each_step=True)
        return ClientResult(minimize(task, clock, received, descent))

"""FedProx, Algorithm 2 of:

Federated Optimization in Heterogeneous Networks.
T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. MLSys 2020.
https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.core.options import Count, Help, Rate, Strength
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a proximal term: a client's steps are pulled back to the global model it started from."""

    local_rate: Annotated[Rate, Help("η, learning rate of a client's SGD steps")] = 0.05
    local_steps: Annotated[Count, Help("SGD steps per round, each on a new mini-batch")] = 20
    proximity: Annotated[Strength, Help("μ, pull of a client towards the global model")] = 0.001

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD on ℓ(x; D) + μ/2 ‖x − w‖², from w, a new D each step."""
        descent = Descent(self.local_steps, self.local_rate, self.proximity, new_batch_each_step=True)
        return ClientResult(minimize(task, clock, received, descent))

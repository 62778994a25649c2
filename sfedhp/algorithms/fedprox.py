"""FedProx, Algorithm 2 of:

Federated Optimization in Heterogeneous Networks.
T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. MLSys 2020.
https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.options import Help, Strength
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedProx(LocalSGD):
    """FedAvg with a proximal term, which pulls a client back to the global model that it started from."""

    pulled_by = "proximity"

    proximity: Annotated[Strength, Help("μ, pull of a client towards the global model")] = 0.001

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD on ℓ(x; D) + μ/2 ‖x − w‖², from w, a new D each step."""
        return ClientResult(minimize(task, clock, received, self.descent(self.proximity)))

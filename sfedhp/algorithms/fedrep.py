"""FedRep, Algorithm 1 of:

Exploiting Shared Representations for Personalized Federated Learning.
L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. ICML 2021.
https://arxiv.org/abs/2102.07078
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

from torch import Tensor

from sfedhp.algorithms.partly_personal import PartlyPersonal
from sfedhp.core.options import Count, Help
from sfedhp.core.types import Clock
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedRep(PartlyPersonal):
    """Like FedPer, but a client first fits its head to the received body, and then the body to that head."""

    own = "head"
    local_steps: Annotated[Count, Help("SGD steps of the body per round, each on a new mini-batch")] = 10
    head_steps: Annotated[Count, Help("SGD steps of the head before them; local_epochs is for both")] = 10

    def trained(self, model: Tensor, task: Task, clock: Clock) -> Tensor:
        """h ← h − η ∇_h ℓ(φ, h; D) with a fixed body φ, then φ ← φ − η ∇_φ ℓ(φ, h; D)."""
        model = self.sgd(model, task, clock, steps=self.head_steps, part=task.part("head"))
        first = self.local_epochs or self.head_steps
        return self.sgd(model, task, clock, first_batch=first, part=task.part("body"))

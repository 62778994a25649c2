"""Training on all rows in one place: the bound that a federation cannot use, for comparison."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.core.options import CountOrOff, Help
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class Pooled(LocalSGD):
    """One model is trained on the training rows of all clients together; models are not sent."""

    federated = False
    clients: Annotated[
        CountOrOff,
        Help("clients whose local_steps it makes, one after the other; 0: as many as train in a round"),
    ] = field(default=0, kw_only=True)

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """w ← w − η ∇ℓ(w; D), a new D of all rows each step: as many steps as all clients make together."""
        descent = self.descent()
        return ClientResult(
            minimize(task, clock, received, replace(descent, steps=descent.steps * max(self.clients, 1)))
        )

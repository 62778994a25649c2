"""FedBABU, Algorithm 1 of:

FedBABU: Toward Enhanced Representation for Federated Image Classification.
J. Oh, S. Kim, S.-Y. Yun. ICLR 2022.
https://arxiv.org/abs/2106.06042
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.finish import Finishing
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.options import CountOrOff, Help
from sfedhp.core.types import Clock
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedBABU(Finishing, UnderEdges, LocalSGD):
    """Clients train only the body together, under a head with its initial weights; each fine-tunes both."""

    finish_steps: Annotated[
        CountOrOff, Help("SGD steps of body and head before a client predicts; 0: off")
    ] = field(default=20, kw_only=True)

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """φ ← φ − η ∇_φ ℓ(φ, h; D) with the initial head h, a new D each step; the mean is the default."""
        return ClientResult(self.sgd(received, task, clock, part=task.part("body")))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """w after the finishing steps, which move the head too."""
        return self.finished(received, task, clock)

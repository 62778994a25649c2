"""Methods whose clients share one part of the model and keep the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.types import Clock
from sfedhp.nn.task import Task


@dataclass(frozen=True)
class PartlyPersonal(UnderEdges, LocalSGD):
    """A method whose servers hold only the shared part of the model, so there is no global model."""

    own: ClassVar[str]  # the part that stays at the client, as `Task.part` names it

    def global_model(self, state: Any) -> None:
        """None: the cloud does not have the part that clients keep."""

    def edge_model(self, state: Any) -> None:
        """None: an edge does not have the part that clients keep."""

    def client_start(self, initial: Tensor, task: Task) -> Tensor:
        """The client's model before the first round."""
        return initial

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD on the shared part as received and the own part as it was; the shared part goes up."""
        own = task.part(self.own)
        model = self.trained(torch.where(own, personal, received), task, clock)
        return ClientResult(torch.where(own, received, model), model)

    def trained(self, model: Tensor, task: Task, clock: Clock) -> Tensor:
        """x ← x − η ∇ℓ(x; D), both parts at once, a new D each step."""
        return self.sgd(model, task, clock)

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Tensor:
        """The shared part as received, the own part of this client."""
        return torch.where(task.part(self.own), personal, received)

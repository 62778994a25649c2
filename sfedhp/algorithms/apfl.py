"""APFL, Algorithm 1 of:

Adaptive Personalized Federated Learning.
Y. Deng, M. M. Kamani, M. Mahdavi. 2020.
https://arxiv.org/abs/2003.13461
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, final

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSteps
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.options import Help, Share
from sfedhp.core.types import Clock
from sfedhp.nn.task import Task


class Mixture(NamedTuple):
    """A client's own model, and its share in the mixture that the client predicts with."""

    own: Tensor  # v, (..., d)
    share: Tensor  # α, (..., 1)


@final
@dataclass(frozen=True)
class APFL(UnderEdges, LocalSteps):
    """A client mixes FedAvg's model with one of its own, and learns the share of each."""

    share: Annotated[Share, Help("α before the first round, share of a client's own model")] = 0.5

    def client_start(self, initial: Tensor, task: Task) -> Mixture:
        """v = w and the same α for all."""
        return Mixture(initial, self.share * torch.ones_like(initial[..., :1]))

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """With v̄ = α v + (1 − α) w: v ← v − η α ∇ℓ(v̄; D) and w ← w − η ∇ℓ(w; D), a new D each step."""
        model, (own, share) = received, personal
        for step, batch in enumerate(self.minibatches(task, clock)):
            gradient = batch.gradient(share * own + (1 - share) * model)
            if step == 0:
                # α ← α − η ⟨v − w, ∇ℓ(v̄; D)⟩, within 0 and 1
                share_grad = ((own - model) * gradient).sum(-1, keepdim=True)
                share = (share - self.local_rate * share_grad).clamp(0, 1)
            own = own - self.local_rate * (share * gradient)
            model = model - self.local_rate * batch.gradient(model)
        return ClientResult(model, Mixture(own, share))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Tensor:
        """v̄ = α v + (1 − α) w."""
        mixture: Mixture = personal
        return mixture.share * mixture.own + (1 - mixture.share) * received

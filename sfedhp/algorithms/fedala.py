"""FedALA, Algorithm 1 of:

FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan. AAAI 2023.
https://arxiv.org/abs/2212.01197
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, final

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.options import Count, Help, Rate
from sfedhp.core.types import Clock
from sfedhp.nn.task import Task


class Kept(NamedTuple):
    """A client's last model, and the weights that mix the global model into it."""

    model: Tensor  # θ, (..., d), as it was sent
    weights: Tensor  # W, (..., d), of the received model in each coordinate


@final
@dataclass(frozen=True)
class FedALA(UnderEdges, LocalSGD):
    """FedAvg, but a client starts between its last model and the received one, by learned weights."""

    weight_rate: Annotated[Rate, Help("η_W, learning rate of the weights")] = 1.0
    weight_steps: Annotated[Count, Help("steps of the weights per round, each on a new mini-batch")] = 5

    def client_start(self, initial: Tensor, task: Task) -> Kept:
        """θ = w and W = 1, the received model."""
        return Kept(initial, torch.ones_like(initial))

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD from θ̂ = θ + (w − θ) ⊙ W in the head and w elsewhere, a new D each step."""
        (old, weights), learnt = personal, task.part("head")
        gap = received - old
        for step in range(self.weight_steps):
            # W ← W − η_W ∇ℓ(θ̂; D) ⊙ (w − θ), within 0 and 1
            start = torch.where(learnt, old + gap * weights, received)
            gradient = task.gradient(start, task.batch(clock, step, "adapt"))
            weights = (weights - self.weight_rate * (gradient * gap)).clamp(0, 1)
        start = torch.where(learnt, old + gap * weights, received)
        model = self.sgd(start, task, clock)
        return ClientResult(model, Kept(model, weights))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """θ, the client's model of this round."""
        return personal.model

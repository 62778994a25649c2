"""SCAFFOLD, Algorithm 1 (option II) of:

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. ICML 2020.
https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.control import Controlled, GradientControl
from sfedhp.core.options import Help, Rate
from sfedhp.core.scalars import where_positive
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, toward, weighted_mean
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class SCAFFOLD(GradientControl):
    """FedAvg; clients correct their drift by the difference of all clients' gradients and their own."""

    server_rate: Annotated[Rate, Help("η_g, how far the cloud goes towards the mean")] = 1.0

    def cloud_message(self, state: Controlled, members: int) -> Tensor:
        """x and then c, the same for every member."""
        return spread(torch.cat([state.model, state.control], -1), members)

    def cloud_step(self, state: Controlled, uploads: Upload, weights: Tensor, clock: Clock) -> Controlled:
        """x ← x + η_g mean_{i ∈ S} (y_i − x), then c ← c + |S|/N mean_{i ∈ S} Δc_i."""
        mean, change = weighted_mean(uploads, weights).chunk(2, -1)
        share = (weights > 0).sum(-1, keepdim=True) / state.members
        model = toward(state.model, mean, self.server_rate)
        return Controlled(model, state.control + share * change, state.members)

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """y_i ← y_i − η (∇ℓ(y_i; D) − c_i + c), K times from x; then c_i ← c_i − c + (x − y_i)/(K η)."""
        start, control = received.chunk(2, -1)
        model = self.sgd(start, task, clock, linear=control - personal)
        learnt = personal - control + (start - model) / (self.local_rate * self.steps_made(task))
        own = where_positive(self.local_rate, learnt, personal)  # a schedule may end at η = 0
        return ClientResult(torch.cat([model, own - personal], -1), own)

"""MTGC, Algorithm 1 of:

Hierarchical Federated Learning with Multi-Timescale Gradient Correction.
W. Fang, D.-J. Han, E. Chen, S. Wang, C. G. Brinton. NeurIPS 2024.
https://arxiv.org/abs/2409.18448
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult, Upload
from sfedhp.algorithms.control import Controlled, GradientControl
from sfedhp.core.factored import dense
from sfedhp.core.options import Count, Help
from sfedhp.core.scalars import where_positive
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class MTGC(GradientControl):
    """HierFAVG whose clients correct their drift from their edge (z), and their edge's from the cloud (y)."""

    tiers, state_per_member, same_steps = 3, True, True
    local_steps: Annotated[Count, Help("H, SGD steps per edge round, each on a new mini-batch")] = 5
    edge_rounds: Annotated[Count, Help("E, edge rounds per cloud round")] = 4

    def cloud_start(self, initial: Tensor, members: int) -> Controlled:
        """x̄, and y_j = 0 of every edge."""
        return super().cloud_start(initial, members)._replace(control=0 * spread(initial, members))

    def cloud_message(self, state: Controlled, members: int) -> Tensor:
        """x̄ and its own y_j to each edge, which passes both on."""
        return torch.cat([spread(state.model, members), state.control], -1)

    def cloud_step(self, state: Controlled, uploads: Upload, weights: Tensor, clock: Clock) -> Controlled:
        """x̄ ← mean_j x̄_j, then y_j ← y_j + (x̄_j − x̄)/(H E η)."""
        each, mean = dense(uploads).chunk(2, -1)[0], weighted_mean(uploads, weights).chunk(2, -1)[0]
        drift = (each - mean.unsqueeze(-2)) / (self.local_rate * self.local_steps * self.edge_rounds)
        learnt = where_positive(self.local_rate, state.control + drift, state.control)
        control = torch.where(weights.unsqueeze(-1) > 0, learnt, state.control)
        return state._replace(model=mean, control=control)

    def edge_model(self, state: Tensor) -> Tensor:
        """x̄_j; an edge holds the mean of x_i, and y_j, which all its clients send back."""
        return state.chunk(2, -1)[0]

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """x_i ← x_i − η (∇ℓ(x_i; D) + z_i + y_j), H times from x̄_j; then z_i ← z_i + (x_i − x̄_j)/(H η)."""
        start, group = received.chunk(2, -1)
        scale = torch.ones((), dtype=torch.float64) / (self.local_rate * self.local_steps)
        # x̄_j comes with the next message: z_i + x_i/(H η) is kept. Every cloud round begins with z_i = 0.
        own = personal - scale * start if clock.edge_round else 0 * start
        own = where_positive(self.local_rate, own, 0 * start)  # a schedule may end at η = 0
        model = self.sgd(start, task, clock, linear=own + group)
        kept = where_positive(self.local_rate, own + scale * model, own)
        return ClientResult(torch.cat([model, group], -1), kept)

"""HierFAVG: Liu, Zhang, Song and Letaief, ICC 2020, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from sfedhp.algorithms.base import Algorithm, ClientResult
from sfedhp.core.scalars import Count, Rate
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class HierFAVG(Algorithm):
    """FedAvg in two storeys: edges average their clients several times, then the cloud averages the edges."""

    tiers = 3
    local_rate: Rate = 0.05  # η, the rate of a client's SGD steps
    local_steps: Count = 5  # κ₁, SGD steps an edge round, each on a new mini-batch
    edge_rounds: Count = 4  # κ₂, edge rounds a cloud round

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """κ₁ SGD steps from the edge's model; both means are the defaults, weighted by training-set size."""
        model = minimize(task, clock, received, steps=self.local_steps, rate=self.local_rate, fresh=True)
        return ClientResult(model)

"""HierFAVG, Algorithm 1 of:

Client-Edge-Cloud Hierarchical Federated Learning.
L. Liu, J. Zhang, S. H. Song, K. B. Letaief. ICC 2020.
https://arxiv.org/abs/1905.06641
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.finish import Finishing
from sfedhp.algorithms.local_sgd import LocalSGD
from sfedhp.algorithms.server_step import ServerSteps
from sfedhp.core.options import Count, Help
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import minimize
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class HierFAVG(ServerSteps, Finishing, LocalSGD):
    """FedAvg with edge servers: edges average their clients several times, then the cloud averages them."""

    tiers = 3
    local_steps: Annotated[Count, Help("κ₁, SGD steps per edge round, each on a new mini-batch")] = 5
    edge_rounds: Annotated[Count, Help("κ₂, edge rounds per cloud round")] = 4

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """κ₁ SGD steps from the edge's model; both means are the defaults, weighted by training-set size."""
        return ClientResult(minimize(task, clock, received, self.descent()))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Any:
        """w after the finishing steps, if there are any."""
        return self.finished(received, task, clock) if self.finish_steps else None

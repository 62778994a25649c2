"""FedAvg with the domain bias eliminator, Algorithm 1 of:

Eliminating Domain Bias for Federated Learning in Representation Space.
J. Zhang, Y. Hua, J. Cao, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan. NeurIPS 2023.
https://arxiv.org/abs/2311.14975
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from torch import Tensor

from sfedhp.algorithms.base import ClientResult
from sfedhp.algorithms.client_means import ClientMeans, Kept
from sfedhp.core.options import Help, Share, Strength
from sfedhp.core.types import Clock
from sfedhp.nn.features import (
    in_head,
    mean_features,
    mean_features_gradient,
    out_of_head,
    shifted,
    shifted_gradient,
)
from sfedhp.nn.task import Task


@final
@dataclass(frozen=True)
class FedDBE(ClientMeans):
    """FedAvg; each client shifts the features before the head, and pulls their mean to all clients'."""

    mean_pull: Annotated[Strength, Help("κ, pull of a client's mean features to those of all clients")] = 50.0
    mean_share: Annotated[Share, Help("μ, share of the last mini-batch in a client's mean features")] = 1.0

    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        """SGD on ℓ(W (f(x) + z) + b; D) + κ/2n ‖m − z̄‖², n the number of features, a new D each step."""
        (model, known), (shift, mean) = received.chunk(2, -1), personal
        # No pull in the first round: z̄ is only known after it.
        goal, later = out_of_head(task, known), torch.as_tensor(clock.cloud_round > 0).to(received)
        strength = self.mean_pull * later * self.mean_share / goal.shape[-1]
        for batch in self.minibatches(task, clock):
            of, rows = batch.task, batch.rows
            # m ← (1 − μ) m + μ mean f(x)
            mean = mean + batch.only_here(self.mean_share * (mean_features(of, model, rows) - mean))
            grad, shift_grad = shifted_gradient(of, model, shift, rows)
            pull = mean_features_gradient(of, model, rows, strength * (mean - goal))
            model = model - self.local_rate * batch.only_here(grad + pull)
            # z ← z − η ∇_z ℓ
            shift = shift - self.local_rate * batch.only_here(shift_grad)
        return ClientResult(torch.cat([model, in_head(task, mean)], -1), Kept(shift, mean))

    def personalize(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> Tensor:
        """w with the bias b + W z."""
        return shifted(task, received.chunk(2, -1)[0], personal.shift)

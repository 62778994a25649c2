"""How far weights overshoot zero under the smooth ℓ1, whose gradient changes sign there at full strength."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms import SFedHP
from sfedhp.theory.settings import Settings

_ROUNDS = 10  # cloud rounds after which the overshoot has settled
_STARTS = 101  # simulated weights, from evenly spaced starts around zero


class Overshoot(NamedTuple):
    """The largest distance from zero of weights that the penalties have brought there."""

    client: float  # of θ
    model: float  # of w_i


def overshoot(algorithm: SFedHP) -> Overshoot:
    """Run Algorithm 1 on single weights without data, from many starts around zero.

    Even where these come to rest, data pushes weights to and fro, and a step back across zero is up to ηγ
    long: the result is never less than that.
    """
    own = Settings.of(algorithm)
    if own.penalty == "l1":
        return Overshoot(0.0, 0.0)  # its proximal step ends at zero
    pull, edge_pull = own.client_proximity, own.edge_proximity

    def penalty_gradient(weights: Tensor) -> Tensor:
        return torch.tanh(weights / own.smoothing)

    largest = Overshoot(own.personal_rate * own.client_sparsity, own.edge_rate * own.edge_sparsity)
    cloud = 2 * max(largest) * torch.linspace(-1, 1, _STARTS, dtype=torch.float64)
    for turn in range(_ROUNDS):
        edge = model = cloud
        for _ in range(own.edge_rounds):
            personal = edge
            for _ in range(own.personal_steps):
                gradient = pull * (personal - edge) + own.client_sparsity * penalty_gradient(personal)
                personal = personal - own.personal_rate * gradient
            edge = model + pull / (pull + edge_pull) * (personal - model)
            gradient = edge_pull * (model - edge) + own.edge_sparsity * penalty_gradient(model)
            model = model - own.edge_rate * gradient
            if turn == _ROUNDS - 1:
                largest = Overshoot(
                    max(largest.client, _largest(personal)), max(largest.model, _largest(model))
                )
        cloud = cloud + own.cloud_mixing * (model - cloud)
    return largest


def _largest(weights: Tensor) -> float:
    """The largest |x|; infinite where the steps overflowed."""
    return float(weights.abs().nan_to_num(math.inf).max())

"""How far weights swing around zero under the smooth ℓ1, whose steps may overshoot it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from sfedhp.algorithms import SFedHP

_ROUNDS = 10  # cloud rounds, by which a swing has settled
_PLACES = 101  # where weights begin


class Swings(NamedTuple):
    """How far from zero weights may be that the penalties have brought there."""

    client: float  # of θ
    model: float  # of w_i


def swings(algorithm: SFedHP) -> Swings:
    """Algorithm 1 on single weights without data, from many places around zero.

    Even where these come to rest, data push weights to and fro, and a step back across zero has up to ηγ.
    """
    if algorithm.penalty == "l1":
        return Swings(0.0, 0.0)  # its proximal step ends at zero
    method: Any = algorithm
    own, pull = method.client_proximity, method.edge_proximity

    def grad(weights: torch.Tensor) -> torch.Tensor:
        return torch.tanh(weights / method.smoothing)

    largest = Swings(method.personal_rate * method.client_sparsity, method.edge_rate * method.edge_sparsity)
    cloud = 2 * max(largest) * torch.linspace(-1, 1, _PLACES, dtype=torch.float64)
    for turn in range(_ROUNDS):
        edge = model = cloud
        for _ in range(method.edge_rounds):
            personal = edge
            for _ in range(method.personal_steps):
                step = own * (personal - edge) + method.client_sparsity * grad(personal)
                personal = personal - method.personal_rate * step
            edge = model + own / (own + pull) * (personal - model)
            step = pull * (model - edge) + method.edge_sparsity * grad(model)
            model = model - method.edge_rate * step
            if turn == _ROUNDS - 1:
                largest = Swings(max(largest.client, _size(personal)), max(largest.model, _size(model)))
        cloud = cloud + method.cloud_mixing * (model - cloud)
    return largest


def _size(weights: torch.Tensor) -> float:
    """The largest |x|; infinite where steps led out of the numbers."""
    return float(weights.abs().nan_to_num(math.inf).max())

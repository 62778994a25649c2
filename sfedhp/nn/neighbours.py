"""The vote of the nearest rows on a class, weighted by their distance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot


class Memory(NamedTuple):
    """A model, and its features of a client's rows, with their labels."""

    model: Tensor  # w, (..., d)
    share: Tensor  # λ, (..., 1, 1), of the rows' vote
    features: Tensor  # f(x_i), (..., rows, features)
    labels: Tensor  # y_i, (..., rows)
    real: Tensor  # (..., rows), bool


def neighbour_vote(
    asked: Tensor, known: Tensor, labels: Tensor, real: Tensor, *, count: int, classes: int
) -> Tensor:
    """p(y) ∝ Σ exp(−‖f − f_i‖) over the nearest rows with the label y, (..., asked, classes).

    Args:
        asked: f, (..., asked, features).
        known: f_i, (..., rows, features).
        labels: of the known rows, (..., rows).
        real: which of them are real, (..., rows); a client without any gets 0 for every class.
        count: how many nearest rows vote; all of a client that has fewer.
        classes: how many.
    """
    gaps = torch.cdist(asked, known).masked_fill(~real.unsqueeze(-2), torch.inf)
    gaps, nearest = gaps.topk(min(count, known.shape[-2]), largest=False)
    weights = (-gaps).softmax(-1).nan_to_num(0.0).unsqueeze(-2)
    of = labels.unsqueeze(-2).expand(*asked.shape[:-1], -1).gather(-1, nearest)
    return (weights @ one_hot(of, classes).to(weights.dtype)).squeeze(-2)

"""Methods whose cloud also computes the mean features of all clients, in the first round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Upload
from sfedhp.algorithms.local_sgd import LocalSteps
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, weighted_mean
from sfedhp.nn.features import linear_head
from sfedhp.nn.task import Task


class Known(NamedTuple):
    """The global model, and the mean features of all clients."""

    model: Tensor  # w, (..., d)
    features: Tensor  # (..., d): z̄ in the place of the first row of W, and 0 elsewhere


class Kept(NamedTuple):
    """A client's shift of its features, and the mean of its features."""

    shift: Tensor  # z, (..., features), added to f(x)
    mean: Tensor  # m, (..., features), of f(x)


@dataclass(frozen=True)
class ClientMeans(UnderEdges, LocalSteps):
    """A method whose messages are a model and mean features, written as a vector of the same length."""

    def cloud_start(self, initial: Tensor, members: int) -> Known:
        """w, and zeros for the mean features, which are not known yet."""
        return Known(initial, 0 * initial)

    def cloud_message(self, state: Known, members: int) -> Tensor:
        """w and then z̄, the same for every member."""
        return spread(torch.cat([state.model, state.features], -1), members)

    def cloud_step(self, state: Known, uploads: Upload, weights: Tensor, clock: Clock) -> Known:
        """w ← Σ n_k w_k / Σ n_k; z̄ ← Σ n_k m_k / Σ n_k in the first round, and never again."""
        model, features = weighted_mean(uploads, weights).chunk(2, -1)
        first = torch.as_tensor(clock.cloud_round == 0, device=model.device)
        return Known(model, torch.where(first, features, state.features))

    def global_model(self, state: Known) -> Tensor:
        """w, which predicts without a shift of the features."""
        return state.model

    def edge_model(self, state: Tensor) -> Tensor:
        """The edge's mean of the models, without that of the features."""
        return state.chunk(2, -1)[0]

    def client_start(self, initial: Tensor, task: Task) -> Kept:
        """A shift of zero, and a mean of zero."""
        zero = initial.new_zeros(*initial.shape[:-1], linear_head(task.network).inputs)
        return Kept(zero, zero)

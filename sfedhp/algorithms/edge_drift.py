"""Drift corrections for edges: each is an estimate of how its edge drifts from the others."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Upload
from sfedhp.algorithms.server_step import ServerState, ServerSteps
from sfedhp.core.factored import dense
from sfedhp.core.options import Help
from sfedhp.core.scalars import Scalar, where_positive
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread, weighted_mean


class Corrected(NamedTuple):
    """The state of a cloud with drift corrections."""

    cloud: Tensor | ServerState
    corrections: Tensor  # y_i, (..., members, d)


@dataclass(frozen=True)
class DriftCorrection(ServerSteps):
    """A three-tier method with the option that edges make steps w_i ← w_i − η₁ (… + y_i).

    The cloud keeps y_i and appends it to w in its message; an edge sends it back after w_i.
    """

    drift_correction: Annotated[
        bool, Help("correct the steps of w_i by y_i, a learned estimate of the edge's drift from the others")
    ] = field(default=False, kw_only=True)

    @property
    @abstractmethod
    def drift_time(self) -> Scalar:
        """η₁ R, the sum of the rates of an edge's steps in a cloud round."""

    def cloud_start(self, initial: Tensor, members: int) -> Any:
        """w, and y_i = 0."""
        cloud = super().cloud_start(initial, members)
        return Corrected(cloud, 0 * spread(initial, members)) if self.drift_correction else cloud

    def cloud_message(self, state: Tensor | ServerState | Corrected, members: int) -> Tensor:
        """w, and its own y_i to each edge."""
        message = super().cloud_message(state, members)
        return torch.cat([message, state.corrections], -1) if isinstance(state, Corrected) else message

    def cloud_step(
        self, state: Tensor | ServerState | Corrected, uploads: Upload, weights: Tensor, clock: Clock
    ) -> Any:
        """The cloud's step; then y_i ← y_i + (w_i − w̄)/(η₁ R) for the edges that count."""
        if not isinstance(state, Corrected):
            return super().cloud_step(state, uploads, weights, clock)
        models = dense(uploads).chunk(2, -1)[0].contiguous()
        cloud = super().cloud_step(state.cloud, models, weights, clock)
        drift = (models - weighted_mean(models, weights).unsqueeze(-2)) / self.drift_time
        learnt = where_positive(self.drift_time, state.corrections + drift, state.corrections)
        return Corrected(cloud, torch.where(weights.unsqueeze(-1) > 0, learnt, state.corrections))

    def global_model(self, state: Tensor | ServerState | Corrected) -> Tensor:
        """w, the cloud's model without the corrections of its edges."""
        return super().global_model(state.cloud if isinstance(state, Corrected) else state)

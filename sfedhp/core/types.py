"""Clock and batch: when something happens, and the rows it happens to."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Clock(NamedTuple):
    """When something happens: schedules and keyed draws depend on it."""

    cloud_round: int | Tensor  # a 0-dim tensor where a round is captured as a graph
    edge_round: int = 0


class Batch(NamedTuple):
    """Rows a client computes with; the leading axes are the stack."""

    inputs: Tensor  # (..., rows, *shape)
    labels: Tensor  # (..., rows)
    real: Tensor  # (..., rows) bool: False where a row only pads a shorter client

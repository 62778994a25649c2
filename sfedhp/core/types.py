"""Clock and batch: the time of a computation, and the rows it uses."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Clock(NamedTuple):
    """The time of a step. Schedules and keyed draws depend on it and on nothing else."""

    cloud_round: int | Tensor  # a 0-dim tensor where a round is recorded as a CUDA graph
    edge_round: int = 0


class Batch(NamedTuple):
    """Rows that clients compute with; the leading axes are the stack."""

    inputs: Tensor  # (..., rows, *shape)
    labels: Tensor  # (..., rows)
    real: Tensor  # (..., rows) bool: False where a row only pads a shorter client

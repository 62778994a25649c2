"""Clock and batch, the time of a computation and the rows it uses; and tuples of such parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

Parts = TypeVar("Parts", bound=tuple[Any, ...])


class Clock(NamedTuple):
    """The time of a step. Schedules and keyed draws depend on it and on nothing else."""

    cloud_round: int | Tensor  # a 0-dim tensor where a round is recorded as a CUDA graph
    edge_round: int = 0


class Batch(NamedTuple):
    """Rows that clients compute with; the leading axes are the stack."""

    inputs: Tensor  # (..., rows, *shape)
    labels: Tensor  # (..., rows, *target): a class has no axes of its own, other targets have one
    real: Tensor  # (..., rows) bool: False where a row only pads a shorter client; it tells rows and stack


def tuple_like(template: Parts, parts: Sequence[Any]) -> Parts:
    """The parts as a tuple of the template's kind: a plain one, or its NamedTuple."""
    kind = type(template)
    return kind(*parts) if hasattr(template, "_fields") else kind(parts)

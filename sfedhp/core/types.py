"""Clock and batch, the time of a computation and the rows it uses; and tuples of such parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from torch import Tensor

from sfedhp.core.keys import key

Augment = Literal["none", "crop", "flip", "crop-flip"]  # random changes of images to train on
ProblemName = Literal["classification", "multilabel", "regression", "reconstruction"]
ProblemOption = Literal["auto", "classification", "multilabel", "regression", "reconstruction"]
Precision = Literal["float32", "tf32", "bf16"]  # of matrix products and convolutions in training
Parts = TypeVar("Parts", bound=tuple[Any, ...])


class Clock(NamedTuple):
    """The time of a step: cloud round and edge round. Schedules and keyed draws depend only on it."""

    cloud_round: int | Tensor  # a 0-dim tensor if a round is recorded as a CUDA graph
    edge_round: int = 0


class Batch(NamedTuple):
    """Rows that clients compute with; the leading axes are the stack."""

    inputs: Tensor  # (..., rows, *shape)
    labels: Tensor  # (..., rows, *target): a class has no axes of its own, other targets have one
    real: Tensor  # (..., rows) bool: False for padding rows; its shape gives rows and stack
    keys: Tensor | None = None  # (...) int64, of this draw; dropout masks follow from it. None: no dropout

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with a function applied to every tensor, such as a choice of clients."""
        keys = None if self.keys is None else function(self.keys)
        return Batch(function(self.inputs), function(self.labels), function(self.real), keys)

    def at_step(self, step: int) -> Batch:
        """The same rows for a further gradient step on them, which has dropout masks of its own."""
        return self if self.keys is None or not step else self._replace(keys=key(self.keys, step))


def tuple_like(template: Parts, parts: Sequence[Any]) -> Parts:
    """The parts as a tuple of the template's kind: a plain one, or its NamedTuple."""
    kind = type(template)
    return kind(*parts) if hasattr(template, "_fields") else kind(parts)

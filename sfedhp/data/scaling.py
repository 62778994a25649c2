"""Scaling of pixels and of the columns of tables; statistics are those of the training rows alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.data.pool import Rows

_CHUNK = 1024  # images that are squared at a time
_WHITE = 255


class Scaling(NamedTuple):
    """A value x becomes (x − shift)/spread."""

    shift: NDArray[np.float64]
    spread: NDArray[np.float64]

    def apply(self, inputs: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scaled inputs in this type."""
        scaled = inputs.astype(dtype)
        scaled -= self.shift.astype(dtype)
        scaled /= self.spread.astype(dtype)
        return scaled


class ColumnScaling(NamedTuple):
    """A missing value of a column becomes the mean of the known ones; then x becomes (x − shift)/spread."""

    mean: NDArray[np.float64]
    shift: NDArray[np.float64]
    spread: NDArray[np.float64]

    def apply(self, inputs: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scaled inputs in this type; computed in float64, for a column may have a large offset."""
        filled = np.where(np.isnan(inputs), self.mean, inputs)
        return ((filled - self.shift) / self.spread).astype(dtype)


def column_scaling_of(
    kind: str, inputs: NDArray[Any], training: Rows, are_numbers: NDArray[np.bool_]
) -> ColumnScaling:
    """How to scale the columns of a table, by the option `scale`: `standard` or `none`.

    Only numbers are standardized: what is 0 or 1 stays. A number that is the same in all training rows
    becomes 0 everywhere, because no model can learn what it means.
    """
    rows = inputs[np.unique(training)]
    known = ~np.isnan(rows)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, rows, 0).sum(0) / count
    if kind == "none":
        return ColumnScaling(mean, np.zeros_like(mean), np.ones_like(mean))
    deviation = np.sqrt((np.where(known, rows - mean, 0) ** 2).sum(0) / count)
    low, high = np.where(known, rows, np.inf).min(0), np.where(known, rows, -np.inf).max(0)
    # The sums of equal values may be rounded, and so the deviation may be above 0.
    spread = np.where((low < high) & (deviation > 0), deviation, np.inf)
    return ColumnScaling(mean, np.where(are_numbers, mean, 0), np.where(are_numbers, spread, 1))


def scaling_of(kind: str, inputs: NDArray[Any], training: Rows) -> Scaling:
    """The scaling of the option `scale`; `none`, and floating inputs, are not scaled."""
    if kind == "none" or inputs.dtype != np.uint8:
        return Scaling(np.zeros(()), np.ones(()))
    if kind in ("auto", "unit"):
        return Scaling(np.zeros(()), np.full((), float(_WHITE)))
    mean, square = _moments(inputs, training)
    if kind == "standard":
        # The first axis of (channels, height, width) is the channel; any other shape is one channel.
        axes = (1, 2) if mean.ndim == 3 else None
        mean, square = mean.mean(axes, keepdims=True), square.mean(axes, keepdims=True)
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    # What never changes has spread 0: for a pixel 0.001 of white is added, a channel is divided by 1.
    spread = spread + 0.001 * _WHITE if kind == "per_pixel" else np.where(spread > 0, spread, 1)
    return Scaling(mean, spread)


def _moments(inputs: NDArray[Any], training: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of each pixel and of its square, from exact integer sums."""
    rows = np.unique(training)
    total, squares = np.zeros((2, *inputs.shape[1:]), np.int64)
    for first in range(0, len(rows), _CHUNK):
        images = inputs[rows[first : first + _CHUNK]].astype(np.int64)
        total += images.sum(0)
        squares += (images**2).sum(0)
    return total / len(rows), squares / len(rows)

"""Sums over rows, which give mean and standard deviation; sums of several clients can be added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1024  # images that are squared at a time


@dataclass(frozen=True, eq=False)
class Sums:
    """Count, Σ(x − center) and Σ(x − center)² of each feature over the rows whose value is known.

    The center is near the mean, because Σx² − (Σx)²/n would lose all digits of a column such as a year or a
    time stamp. Pixels have the center 0 and integer sums, which are exact.
    """

    count: NDArray[np.int64]
    center: NDArray[Any]
    total: NDArray[Any]
    squares: NDArray[Any]

    @classmethod
    def of(cls, rows: NDArray[Any], *, to_add: bool = False) -> Self:
        """The sums of rows (rows, *shape); a value that is NaN is missing and does not count.

        Args:
            rows: pixels or numbers.
            to_add: they will be added to those of others, about another center. Then Σ(x − center) is
                computed too; alone it is taken to be 0, for the center is the mean up to rounding.
        """
        if rows.dtype == np.uint8:
            return cls._of_pixels(rows)
        values = rows.astype(np.float64, copy=False)
        known = ~np.isnan(values)
        count = known.sum(0)
        center = np.where(known, values, 0).sum(0) / np.maximum(count, 1)
        low = np.where(known, values, np.inf).min(0, initial=np.inf)
        high = np.where(known, values, -np.inf).max(0, initial=-np.inf)
        # The mean of equal values may be rounded; their deviation is 0.
        center = np.where(low == high, low, center)
        apart = np.where(known, values - center, 0)
        return cls(count, center, apart.sum(0) if to_add else np.zeros_like(center), (apart**2).sum(0))

    @classmethod
    def _of_pixels(cls, images: NDArray[np.uint8]) -> Self:
        total, squares = np.zeros((2, *images.shape[1:]), np.int64)
        for first in range(0, len(images), _CHUNK):
            part = images[first : first + _CHUNK].astype(np.int64)
            total += part.sum(0)
            squares += (part**2).sum(0)
        return cls(np.array(len(images)), np.zeros((), np.int64), total, squares)

    @classmethod
    def add(cls, parts: Sequence[Self]) -> Self:
        """The sums of all rows, from the sums of parts of them: those of the clients, or of the edges.

        All are moved to one center, that of the first part that knows the feature.
        """
        center = parts[0].center
        known = np.broadcast_to(parts[0].count > 0, np.shape(parts[0].total))
        if not all(np.array_equal(part.center, center) for part in parts):  # those of pixels have no axes
            for part in parts[1:]:
                center = np.where(known, center, part.center)
                known = known | (part.count > 0)
        moved = [part._about(center) for part in parts]
        return cls(
            sum((part.count for part in moved[1:]), moved[0].count),
            center,
            sum((part.total for part in moved[1:]), moved[0].total),
            sum((part.squares for part in moved[1:]), moved[0].squares),
        )

    def _about(self, center: NDArray[Any]) -> Self:
        """Convert the sums to another center."""
        apart = np.where(self.count > 0, self.center - center, 0)
        total = self.total + self.count * apart
        squares = self.squares + 2 * apart * self.total + self.count * apart**2
        return type(self)(self.count, center, total, squares)

    def moments(self, axes: tuple[int, ...] = ()) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of each feature; those along these axes count as one, and keep the axis."""
        index = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(self.total.ndim))
        center = np.broadcast_to(self.center, self.total.shape)[index]
        about, count = self._about(center), np.maximum(self.count, 1)
        mean = (about.total / count).mean(axes, keepdims=True)
        square = (about.squares / count).mean(axes, keepdims=True)
        return center + mean, np.maximum(square - mean**2, 0)

    def to_dict(self) -> dict[str, Any]:
        """The sums as JSON can hold them."""
        return {name: getattr(self, name).tolist() for name in ("count", "center", "total", "squares")}

"""Scaling of inputs and targets: of pixels, floats, columns of tables, and numbers to predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.options import Scale
from sfedhp.data.sums import Sums

_WHITE = 255
NEEDS_SUMS = ("standard", "per_pixel")  # scales that depend on the training rows of all clients


@dataclass(frozen=True, eq=False)
class Scaling:
    """Replaces missing values by `fill`, then maps x to (x − shift)/spread.

    A feature that is constant in all training rows has the spread ∞ and becomes 0 everywhere, because a model
    cannot learn from it.
    """

    kind: Scale  # as resolved, never "auto"
    pixels: bool  # it is made for uint8
    shift: NDArray[np.float64]
    spread: NDArray[np.float64]
    fill: NDArray[np.float64] | None = None  # of each column of a table

    @classmethod
    def of_pixels(cls, kind: Scale, sums: Sums | None) -> Self:
        """The scaling of uint8 images, by the option `scale`.

        Args:
            kind: `unit` (also for `auto`), `symmetric`, `standard` (by channel), `per_pixel` or `none`.
            sums: of the training images; None if the kind needs none.
        """
        if kind == "symmetric":
            return cls(kind, True, np.full((), _WHITE / 2), np.full((), _WHITE / 2))
        if kind not in NEEDS_SUMS:
            white = 1.0 if kind == "none" else float(_WHITE)
            return cls("none" if kind == "none" else "unit", True, np.zeros(()), np.full((), white))
        assert sums is not None, f"{kind} needs sums"
        # The first axis of (channels, height, width) is the channel; any other shape is one channel.
        every = tuple(range(sums.total.ndim))
        axes = () if kind == "per_pixel" else (1, 2) if len(every) == 3 else every
        mean, variance = sums.moments(axes)
        if mean.size == 1:
            mean, variance = mean.reshape(()), variance.reshape(())
        spread = np.sqrt(variance)
        # What never changes has spread 0: for a pixel 0.001 of white is added, a channel is divided by 1.
        spread = spread + 0.001 * _WHITE if kind == "per_pixel" else np.where(spread > 0, spread, 1)
        return cls(kind, True, mean, spread)

    @classmethod
    def of_floats(cls, kind: Scale, sums: Sums | None) -> Self:
        """The scaling of floating inputs that are not a table, and of targets: only `standard` changes them.

        It is by feature: each of (features,), the last axis of (time, features), the first of
        (channels, height, width).

        Args:
            kind: the option `scale`.
            sums: of the training rows; None if nothing is scaled.
        """
        if kind != "standard":
            return cls("none", False, np.zeros(()), np.ones(()))
        assert sums is not None, f"{kind} needs sums"
        dimensions = sums.total.ndim
        mean, variance = sums.moments({0: (), 1: (), 2: (0,)}.get(dimensions, tuple(range(1, dimensions))))
        return cls("standard", False, mean, _or_infinite(np.sqrt(variance)))

    @classmethod
    def of_columns(cls, kind: Scale, sums: Sums, are_numbers: NDArray[np.bool_]) -> Self:
        """The scaling of a table's columns, `standard` or `none`; missing values become the mean.

        Args:
            kind: the option `scale`.
            sums: of the training rows.
            are_numbers: which columns are standardized; what is 0 or 1 stays.
        """
        mean, variance = sums.moments()
        if kind == "none":
            return cls(kind, False, np.zeros_like(mean), np.ones_like(mean), mean)
        spread = _or_infinite(np.sqrt(variance))
        return cls(kind, False, np.where(are_numbers, mean, 0), np.where(are_numbers, spread, 1), mean)

    def apply(self, inputs: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scaled inputs in this type, in new memory.

        Floats are scaled in float64, because a column may have a large offset; pixels in the type itself.
        """
        if self.pixels:
            scaled = inputs.astype(dtype)
            scaled -= self.shift.astype(dtype)
            scaled /= self.spread.astype(dtype)
            return scaled
        if self.kind == "none" and self.fill is None:
            return inputs.astype(dtype)
        filled = inputs if self.fill is None else np.where(np.isnan(inputs), self.fill, inputs)
        return ((filled - self.shift) / self.spread).astype(dtype)

    def invert(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Scaled values in their own units; a feature that was constant has its one value."""
        spread = np.where(np.isinf(self.spread), 0, self.spread)
        return values * spread + self.shift

    def check(self, name: str, inputs: NDArray[Any]) -> None:
        """Reject pixels if the model was trained on floats, and vice versa.

        Args:
            name: how the message calls the data.
            inputs: not scaled.

        Raises:
            InputError: says what to give.
        """
        if (inputs.dtype == np.uint8) == self.pixels:
            return
        found, trained = ("uint8", "floats") if inputs.dtype == np.uint8 else (str(inputs.dtype), "uint8")
        raise InputError(
            f"{name}: `inputs` are {found}, but the model was trained on {trained}: give rows in the type "
            f"and range of the training data; they are scaled as it was."
        )

    def to_dict(self) -> dict[str, Any]:
        """The scaling as JSON can hold it; null is a spread of ∞."""
        values: dict[str, Any] = {
            "kind": self.kind,
            "pixels": self.pixels,
            "shift": self.shift.tolist(),
            "spread": _finite(self.spread.tolist()),
        }
        return values if self.fill is None else {**values, "fill": self.fill.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The scaling that `to_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        spread = np.array(values["spread"], np.float64)  # None becomes NaN
        return cls(
            values["kind"],
            bool(values["pixels"]),
            np.array(values["shift"], np.float64),
            np.where(np.isnan(spread), np.inf, spread),
            np.array(values["fill"], np.float64) if "fill" in values else None,
        )


def scaling_of(
    kind: Scale, inputs: NDArray[Any], training: NDArray[np.int64], are_numbers: NDArray[np.bool_] | None
) -> Scaling:
    """The scaling of a federation's inputs, from those of its training rows alone.

    Args:
        kind: the option `scale`, as resolved.
        inputs: all rows.
        training: the numbers of those that some client trains on.
        are_numbers: which columns of a table are not just 0 or 1; None: it is not a table.
    """
    rows = np.unique(training)
    if are_numbers is not None:
        return Scaling.of_columns(kind, Sums.of(inputs[rows]), are_numbers)
    sums = Sums.of(inputs[rows]) if kind in NEEDS_SUMS else None
    return Scaling.of_pixels(kind, sums) if inputs.dtype == np.uint8 else Scaling.of_floats(kind, sums)


def _or_infinite(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(spread > 0, spread, np.inf)


def _finite(values: Any) -> Any:
    """Nested lists with None for what is infinite, which JSON has no number for."""
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return None if values == np.inf else values

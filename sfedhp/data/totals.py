"""Sums that clients report over their training rows before the first round, so that all scale equally.

Mean and deviation of the inputs and targets follow from sums, and balanced class weights from counts. Those
of several clients can be added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sfedhp.data.federation import Federation
from sfedhp.data.options import Scale
from sfedhp.data.pool import Rows
from sfedhp.data.scaling import NEEDS_SUMS, Scaling
from sfedhp.data.sums import Sums

_FIELDS = ("count", "center", "total", "squares")  # of `Sums`
_LARGEST_OF_CLIENT = 1e40  # numbers; their squares are at most the square of it
_LARGEST = 1e50  # of several clients together
_WHITE = 255
_ROUNDING = 1e-6


@dataclass(frozen=True)
class TotalsShape:
    """How many numbers the totals of a federation have; this must be the same for all its clients."""

    inputs: tuple[int, ...]  # of one input
    targets: int  # numbers to be predicted; 0: none
    classes: int  # 0: no classes are predicted
    pixels: bool | None = None  # whether inputs are uint8; None: unknown when the kits were made

    @property
    def numbers(self) -> int:
        """The largest number of values in a message with totals."""
        return len(_FIELDS) * (math.prod(self.inputs) + self.targets) + self.classes


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums and counts over training rows, of one client or of several together."""

    pixels: bool  # inputs are uint8
    inputs: Sums
    targets: Sums | None  # of numbers to be predicted
    classes: tuple[int, ...]  # rows of each class

    @classmethod
    def of(cls, federation: Federation, rows: Rows) -> Self:
        """Compute the totals of a client's training rows.

        Args:
            federation: that has them.
            rows: their numbers.
        """
        inputs, labels = federation.inputs[rows], federation.labels[rows]
        classes = np.bincount(labels, minlength=federation.classes).tolist() if federation.classes else []
        return cls(
            inputs.dtype == np.uint8,
            Sums.of(inputs, to_add=True),
            Sums.of(labels, to_add=True) if federation.problem == "regression" else None,
            tuple(classes),
        )

    @classmethod
    def add(cls, parts: Sequence[Self]) -> Self:
        """The totals of the rows of all parts.

        Raises:
            ValueError: some are of pixels and some of floats.
        """
        if len({part.pixels for part in parts}) > 1:
            raise ValueError("some clients have uint8 and some have floats")
        targets = [part.targets for part in parts if part.targets is not None]
        return cls(
            parts[0].pixels,
            Sums.add([part.inputs for part in parts]),
            Sums.add(targets) if targets else None,
            tuple(map(sum, zip(*(part.classes for part in parts), strict=True))),
        )

    def scaling(self, kind: Scale, are_numbers: NDArray[np.bool_] | None) -> Scaling:
        """The scaling of the inputs.

        Args:
            kind: the option `scale`, as resolved.
            are_numbers: which columns of a table are not just 0 or 1; None: it is not a table.
        """
        if are_numbers is not None:
            return Scaling.of_columns(kind, self.inputs, are_numbers)
        sums = self.inputs if kind in NEEDS_SUMS else None
        return Scaling.of_pixels(kind, sums) if self.pixels else Scaling.of_floats(kind, sums)

    @property
    def target_scaling(self) -> Scaling | None:
        """The scaling of numbers to be predicted."""
        return None if self.targets is None else Scaling.of_floats("standard", self.targets)

    def to_dict(self) -> dict[str, Any]:
        """The totals as JSON can hold them."""
        values = {"pixels": self.pixels, "inputs": self.inputs.to_dict(), "classes": list(self.classes)}
        return values if self.targets is None else {**values, "targets": self.targets.to_dict()}

    @classmethod
    def from_dict(cls, values: Any, shape: TotalsShape, most: float, *, one_client: bool = False) -> Self:
        """The totals that `to_dict` wrote on another machine.

        Args:
            values: untrusted.
            shape: of the federation.
            most: rows that there may be.
            one_client: whether they are a client's own. Its numbers have a lower limit, so that no client
                can make the totals of its server too large for the next one.

        Raises:
            ValueError: they cannot be totals of that many rows; says why.
        """
        largest = _LARGEST_OF_CLIENT if one_client else _LARGEST
        known = {"pixels", "inputs", "classes", *(["targets"] if shape.targets else [])}
        if not isinstance(values, Mapping) or values.keys() != known or type(values["pixels"]) is not bool:
            raise ValueError("they lack something")
        pixels, classes = values["pixels"], _array(values["classes"], (shape.classes,), "iu")
        if shape.pixels is not None and pixels != shape.pixels:
            raise ValueError("they are of uint8 where the federation has floats, or the other way round")
        if classes.size and (classes.min() < 0 or classes.sum() > most):
            raise ValueError("they count rows of classes that there cannot be")
        return cls(
            pixels,
            _sums(values["inputs"], shape.inputs, pixels, most, largest),
            _sums(values["targets"], (shape.targets,), False, most, largest) if shape.targets else None,
            tuple(classes.tolist()),
        )


def _sums(values: Any, shape: tuple[int, ...], pixels: bool, most: float, largest: float) -> Sums:
    if not isinstance(values, Mapping) or values.keys() != set(_FIELDS):
        raise ValueError("a sum is missing")
    one: tuple[int, ...] = ()
    kinds = "iu" if pixels else "iuf"
    shapes = {"count": one if pixels else shape, "center": one if pixels else shape}
    limits = {"squares": largest**2}
    count, center, total, squares = (
        _array(
            values[name],
            shapes.get(name, shape),
            "iu" if name == "count" else kinds,
            limits.get(name, largest),
        )
        for name in _FIELDS
    )
    if count.size and (count.min() < 0 or count.max() > most):
        raise ValueError(f"they count {int(count.max())} rows, and there may be {most:g}")
    if squares.size and squares.min() < 0:
        raise ValueError("a sum of squares is negative")
    if not pixels:  # JSON has no floats but those with a point, and whole numbers overflow
        center, total, squares = (each.astype(np.float64) for each in (center, total, squares))
    found = Sums(count, center, total, squares)
    _check_possible(found, pixels)
    return found


def _check_possible(sums: Sums, pixels: bool) -> None:
    """Reject sums that no rows can have: they could make the standard deviation over all clients 0.

    Raises:
        ValueError: there are no such rows.
    """
    count, total, squares = (each.astype(np.float64) for each in (sums.count, sums.total, sums.squares))
    # (Σx)² ≤ n Σx² for any n numbers.
    possible = (total**2 <= (1 + _ROUNDING) * count * squares) & ((count > 0) | (squares == 0))
    if pixels:
        possible &= (
            (sums.center == 0) & (total >= 0) & (total <= _WHITE * count) & (squares <= _WHITE * total)
        )
    if not possible.all():
        raise ValueError("no rows have such sums")


def _array(values: Any, shape: tuple[int, ...], kinds: str, largest: float = np.inf) -> NDArray[Any]:
    """An array of finite numbers of this shape.

    Raises:
        ValueError: it is not one.
    """
    array = np.array(values) if values != [] else np.zeros(0, np.int64)  # ragged lists raise ValueError
    # The comparison is False for NaN too; squares of sums within the limit are finite.
    if array.shape != shape or array.dtype.kind not in kinds or not (np.abs(array) <= largest).all():
        raise ValueError("a sum does not have the shape of the data, or is not a number of a reasonable size")
    return array

"""Targets: the problem that a target defines, and its labels.

Labels are (rows,) of int64 for classes, (rows, labels) of uint8 for several labels at once, and
(rows, targets) of float64 for numbers. A reconstruction predicts its inputs; its labels only group rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemName, ProblemOption

MOST_CLASSES = 50  # more different whole numbers than that are probably no classes
_TENTHS = 10


class Target(NamedTuple):
    """The labels of all rows."""

    problem: ProblemName
    labels: NDArray[Any]
    note: str | None = None  # why this problem was chosen, if the user did not name it


class Strata(NamedTuple):
    """Groups of rows with similar targets, by which rows are divided and split."""

    group: NDArray[np.int64]  # (rows,) from 0
    groups: int


def target_of(name: str, values: NDArray[Any], problem: ProblemOption) -> Target:
    """The labels of a user's array.

    Args:
        name: how messages call the array.
        values: (rows,) or (rows, targets).
        problem: as the user named it; "auto": it follows from the values.

    Raises:
        InputError: the values do not fit the problem, or fit none.
    """
    if problem == "reconstruction":
        whole = values.ndim == 1 and values.dtype.kind in "iu"
        return Target(problem, _classes(name, values) if whole else np.zeros(len(values), np.int64))
    _check_finite(name, values)
    if problem == "classification" or (problem == "auto" and values.ndim == 1 and values.dtype.kind != "f"):
        return Target("classification", _classes(name, values))
    if values.dtype.kind not in "biuf":
        raise InputError(
            f"{name} holds {values.dtype} and not numbers, which problem = {problem} needs: give numbers, or "
            f"set problem=classification."
        )
    is_binary = bool(np.isin(values, (0, 1)).all())
    if problem == "multilabel" or (problem == "auto" and values.ndim == 2 and is_binary):
        if values.ndim != 2 or not is_binary:
            raise InputError(
                f"{name} must be 0 or 1 for each label, shape (rows, labels), if problem = multilabel: its "
                f"shape is {values.shape}{'' if is_binary else ', with other values'}."
            )
        note = f"{name} holds several columns of 0 and 1: problem = multilabel."
        return Target("multilabel", values.astype(np.uint8), note if problem == "auto" else None)
    if problem == "auto":
        _check_clear(name, values)
    note = f"{name} holds numbers that are not classes: problem = regression."
    numbers = values.reshape(len(values), -1).astype(np.float64)
    return Target("regression", numbers, note if problem == "auto" else None)


def strata_of(problem: ProblemName, labels: NDArray[Any]) -> Strata:
    """Groups of rows with similar labels.

    They are the classes, the tenths of the first target's distribution, or the first label that is set.
    """
    if problem in ("classification", "reconstruction"):
        return Strata(labels, int(labels.max()) + 1)
    if problem == "multilabel":
        none = ~labels.any(1)
        return Strata(np.where(none, labels.shape[1], labels.argmax(1)).astype(np.int64), labels.shape[1] + 1)
    first = labels[:, 0]
    ends = np.quantile(first, np.arange(1, _TENTHS) / _TENTHS)
    return Strata(np.searchsorted(ends, first, side="right").astype(np.int64), _TENTHS)


def _classes(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    rounded = values.dtype.kind == "f" and bool((values == np.round(values)).all())
    whole = values.dtype.kind in "biu" or rounded
    if values.ndim != 1 or not whole or values.min() < 0 or values.max() > np.iinfo(np.int64).max:
        found = values.min() if values.ndim == 1 and whole else f"{values.dtype}, shape {values.shape}"
        raise InputError(
            f"{name} must be integers from 0 (found {found}): number the classes, for example with "
            f"np.unique(labels, return_inverse=True)[1]."
        )
    return values.astype(np.int64)


def _check_finite(name: str, values: NDArray[Any]) -> None:
    # The limit is float32's, the default of a run; the comparison is False for NaN too.
    if values.dtype.kind == "f":
        wrong = ~(np.abs(values) <= np.finfo(np.float32).max).reshape(len(values), -1).all(1)
        if wrong.any():
            raise InputError(
                f"{name} holds a NaN, infinite or huge (above 3e38) value in row {int(wrong.argmax())}: a "
                f"target must be known; remove the row."
            )


def _check_clear(name: str, values: NDArray[Any]) -> None:
    """Refuse numbers that may be classes or quantities."""
    if values.dtype.kind == "f" and not (values == np.round(values)).all():
        return
    few = values.ndim == 1 and len(np.unique(values)) <= MOST_CLASSES
    if few or values.dtype.kind != "f":
        raise InputError(
            f"{name} holds whole numbers ({values.dtype}, shape {values.shape}), which may be classes or "
            f"quantities: set problem=regression, or give integers from 0, one for each row, for classes."
        )

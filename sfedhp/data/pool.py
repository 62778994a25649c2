"""The rows of a source before they are divided among clients, and the checks of a user's arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfedhp.core.errors import InputError, did_you_mean
from sfedhp.core.text import printable
from sfedhp.core.types import ProblemName, ProblemOption
from sfedhp.data.encoding import Encoding
from sfedhp.data.owners import edges_of_clients, owners_of
from sfedhp.data.targets import MOST_CLASSES, Strata, Target, strata_of, target_of

Rows = NDArray[np.int64]  # row numbers of a pool
NEEDED = ("inputs", "labels")
_KNOWN = (*NEEDED, "client", "edge", "test")
_NAMED = 5  # classes without rows that a note names
_IN_NUMPY = (torch.float16, torch.float32, torch.float64)  # the floating types that NumPy has too


class Counts(NamedTuple):
    """Images per label and client."""

    train: int
    test: int
    validation: int


class Names(NamedTuple):
    """The names in a source, each in the order of their numbers; empty if it has no names."""

    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # of numbers

    def printable(self) -> Names:
        """The names without what a terminal would obey; they are text of unknown origin."""
        return Names(*(tuple(map(printable, each)) for each in self))


NO_NAMES = Names()


@dataclass(frozen=True, eq=False)
class Pool:
    """All rows of a source, with the clients and edges that the source itself names."""

    name: str  # how messages call the source
    inputs: NDArray[Any]  # (rows, *shape): uint8 images or floating rows
    labels: NDArray[Any]  # (rows,) from 0 of classes, (rows, targets) of others; see `data.targets`
    classes: int  # 0 where no classes are predicted
    client: NDArray[np.int64] | None = None  # client of the row, if the source says so
    test: NDArray[np.bool_] | None = None  # which rows are for testing, if the source says so
    counts: Counts | None = None  # the source's own counts for the paper partitions; None: a user's data
    notes: tuple[str, ...] = ()  # lines worth printing
    names: Names = NO_NAMES
    encoding: Encoding | None = None  # of a table's columns; inputs are NaN if a number is missing
    edge_of: NDArray[np.int64] | None = None  # the edge of each client, if the source says so
    edge_source: str = ""  # what says so, in words
    problem: ProblemName = "classification"

    @cached_property
    def strata(self) -> Strata:
        """Groups of rows with similar labels: the classes, where these are predicted."""
        if self.classes:
            return Strata(self.labels, self.classes)
        return strata_of(self.problem, self.labels)

    def client_name(self, client: int) -> str:
        """A client as messages call it."""
        return f"client {self.names.clients[client]!r}" if self.names.clients else f"client {client}"


def pool_of(
    name: str,
    inputs: Any,
    labels: Any = None,
    client: Any = None,
    test: Any = None,
    edge: Any = None,
    problem: ProblemOption = "auto",
) -> Pool:
    """A pool of a user's arrays, checked; it has as many classes as its labels reach.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    inputs = check_inputs(name, inputs)
    target = _target(name, labels, len(inputs), problem)
    holders = _holders(name, client, edge, len(inputs))
    if test is not None:
        test = _column(name, "test", test, len(inputs))
        if test.dtype != np.bool_:
            raise InputError(f"{name}: `test` must be an array of bool, not {test.dtype}.")
    classes = int(target.labels.max()) + 1 if target.problem == "classification" else 0
    notes = (target.note,) if target.note else ()
    return Pool(
        name, inputs, target.labels, classes, test=test, notes=notes, problem=target.problem, **holders
    )


def with_problem(pool: Pool, problem: ProblemOption) -> Pool:
    """A pool of classes as the source of another problem.

    Raises:
        InputError: its labels do not fit.
    """
    if problem in ("auto", pool.problem):
        return pool
    target = target_of(f"{pool.name}: the label", pool.labels, problem)
    return replace(pool, labels=target.labels, classes=0, problem=target.problem)


def needed_arrays(problem: ProblemOption) -> tuple[str, ...]:
    """The arrays that a user must give."""
    return ("inputs",) if problem == "reconstruction" else NEEDED


def check_names(name: str, arrays: Iterable[Any], needed: Sequence[str] = NEEDED) -> None:
    """Refuse a user's arrays if one is missing, or has a name that is never read.

    Raises:
        InputError: names the array, and the nearest right name if there is one.
    """
    found = [str(each) for each in arrays]
    for unknown in found:
        if unknown not in _KNOWN:
            known = ", ".join(f"`{each}`" for each in _KNOWN[:-1]) + f" and `{_KNOWN[-1]}`"
            hint = did_you_mean(unknown, _KNOWN, "rename it, or leave it out.", "`{}`".format)
            raise InputError(f"{name} holds an array `{unknown}`, but the known ones are {known}: {hint}")
    for each in needed:
        if each not in found:
            raise InputError(
                f"{name} has no array `{each}` (it holds {', '.join(found) or 'nothing'}): add it."
            )


def with_classes(pool: Pool, classes: int | None) -> Pool:
    """The pool with this number of classes; None: as many as its labels reach.

    If a small sample lacks a class, a note says so. If most classes are missing, the numbers are probably not
    labels, which is an error. A pool of another problem is returned unchanged.

    Raises:
        InputError: a label is beyond the classes, or most classes have no rows.
    """
    if pool.problem != "classification":
        return pool
    if classes is not None:
        if pool.classes > classes:
            raise InputError(
                f"{pool.name} has labels up to {pool.classes - 1}, but there are {classes} classes, 0 to "
                f"{classes - 1}: leave such rows out, or number the classes as the others do."
            )
        return replace(pool, classes=classes)
    present = np.unique(pool.labels)
    if 2 * len(present) < pool.classes:
        raise InputError(
            f"{pool.name} has labels up to {pool.classes - 1}, but only {len(present)} of these "
            f"{pool.classes} classes have rows: number the classes 0, 1, 2, … without gaps, for example with "
            f"np.unique(labels, return_inverse=True)[1]."
        )
    if len(present) > MOST_CLASSES:
        note = (
            f"{pool.name} has labels with {len(present)} different values, taken as classes: set "
            f"problem=regression if they are quantities."
        )
        pool = replace(pool, notes=(*pool.notes, note))
    missing = np.setdiff1d(np.arange(pool.classes), present)
    if not len(missing):
        return pool
    names = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else ".")
    note = f"{len(missing)} of {pool.classes} classes have no rows in {pool.name}: {names}"
    return replace(pool, notes=(*pool.notes, note))


def check_inputs(name: str, values: Any) -> NDArray[Any]:
    """A user's inputs as an array (rows, *shape) of uint8 or of floats.

    Raises:
        InputError: they are not numbers, not finite, or have no rows.
    """
    inputs = _array(name, "inputs", values)
    if inputs.ndim < 2 or inputs.size == 0:
        raise InputError(
            f"{name}: `inputs` must be (rows, features…), at least one of each, not of shape {inputs.shape}."
        )
    if inputs.dtype.kind not in "biuf":
        raise InputError(f"{name}: `inputs` must be numbers, not {inputs.dtype}.")
    if inputs.dtype == np.uint8:
        return np.ascontiguousarray(inputs)
    # The limit is float32's, the default of a run; the comparison is False for NaN too.
    if inputs.dtype.kind == "f" and not (np.abs(inputs) <= np.finfo(np.float32).max).all():
        raise InputError(
            f"{name}: `inputs` holds NaN, infinite or huge (above 3e38) values: remove or replace such rows."
        )
    # Native byte order, and only types that torch has.
    kept = np.float32 if inputs.dtype.kind == "f" and inputs.dtype.itemsize <= 4 else np.float64
    return np.ascontiguousarray(inputs, dtype=kept)


def _target(name: str, values: Any, rows: int, problem: ProblemOption) -> Target:
    if values is None:
        return Target("reconstruction", np.zeros(rows, np.int64))
    array = _array(name, "labels", values)
    if array.ndim not in (1, 2) or len(array) != rows or not array.size:
        raise _wrong_shape(name, "labels", rows, array)
    if problem == "auto" and array.ndim == 2 and array.shape[1] == 1:
        raise _wrong_shape(name, "labels", rows, array)
    return target_of(f"{name}: `labels`", array, problem)


def _holders(name: str, client: Any, edge: Any, rows: int) -> dict[str, Any]:
    """What the arrays `client` and `edge` say, as fields of a pool."""
    if client is None and edge is not None:
        raise InputError(f"{name}: `edge` needs `client`: say which client holds each row too.")
    if client is None:
        return {}
    clients = owners_of(name, "client", _column(name, "client", client, rows, texts=True))
    if edge is None:
        return {"client": clients.numbers, "names": Names(clients=clients.names)}
    edges = owners_of(name, "edge", _column(name, "edge", edge, rows, texts=True))
    return {
        "client": clients.numbers,
        "names": Names(clients=clients.names, edges=edges.names),
        "edge_of": edges_of_clients(name, clients, edges),
        "edge_source": f"`edge` of {name}",
    }


def _column(name: str, column: str, values: Any, rows: int, *, texts: bool = False) -> NDArray[Any]:
    array = _array(name, column, values, texts)
    if array.shape != (rows,):
        raise _wrong_shape(name, column, rows, array)
    return array


def _wrong_shape(name: str, column: str, rows: int, array: NDArray[Any]) -> InputError:
    return InputError(
        f"{name}: `{column}` must hold one value for each of the {rows} rows of `inputs`, "
        f"but its shape is {array.shape}."
    )


def _array(name: str, column: str, values: Any, texts: bool = False) -> NDArray[Any]:
    try:
        array = np.asarray(
            [_plain(row) for row in values] if isinstance(values, list | tuple) else _plain(values)
        )
    except ValueError as error:
        raise InputError(f"{name}: `{column}` has rows of different lengths.") from error
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"{name}: `{column}` cannot be read as an array of numbers: give a NumPy array or a dense tensor."
        ) from error
    if array.dtype.hasobject and not texts:  # text of pandas is an array of objects
        raise InputError(f"{name}: `{column}` is an object array: store plain numbers.")
    if array.dtype.kind == "U" and _highest_character(array) > sys.maxunicode:
        raise InputError(f"{name}: `{column}` has text that is not Unicode: the file is damaged.")
    return array


def _highest_character(texts: NDArray[Any]) -> int:
    """The highest code in an array of text, of which Python itself makes strings unchecked."""
    if not texts.size or not texts.itemsize:
        return 0
    codes = np.ascontiguousarray(texts).view(np.dtype("u4").newbyteorder(texts.dtype.byteorder))
    return int(codes.max())


def _plain(values: Any) -> Any:
    """A value as NumPy can read it: a tensor is copied to the CPU, detached, and cast to a type NumPy has."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach()
    if values.is_floating_point() and values.dtype not in _IN_NUMPY:
        values = values.float()
    return values.cpu().numpy()

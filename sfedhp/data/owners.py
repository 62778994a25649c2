"""The client and the edge of each row from a user's arrays: numbers from 0, and names to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.columns import sorted_names


class Owners(NamedTuple):
    """The client, or the edge, of each row."""

    numbers: NDArray[np.int64]  # (rows,), from 0 without gaps
    names: tuple[str, ...]  # by number; empty if the user's own numbers are 0, 1, 2, …


def owners_of(name: str, column: str, values: NDArray[Any]) -> Owners:
    """The owners in an array `client` or `edge` of integers or text.

    Args:
        name: of the source, for messages.
        column: of the array, likewise.
        values: (rows,).

    Raises:
        InputError: they are neither integers nor text, or a name is empty.
    """
    if values.dtype.kind in "iu":
        found, numbers = np.unique(values, return_inverse=True)
        own = np.array_equal(found, np.arange(len(found)))
        return Owners(numbers.astype(np.int64), () if own else tuple(map(str, found.tolist())))
    texts = [_text(name, column, row, value) for row, value in enumerate(values.tolist())]
    names = sorted_names(set(texts))
    return Owners(numbered(texts, names), names)


def numbered(texts: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    """The place of each text among the names."""
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[text] for text in texts], np.int64)


def edges_of_clients(name: str, client: Owners, edge: Owners) -> NDArray[np.int64]:
    """The edge of each client, (clients,).

    Raises:
        InputError: a client is under two edges.
    """
    found = np.empty(int(client.numbers.max()) + 1, np.int64)
    found[client.numbers] = edge.numbers
    wrong = found[client.numbers] != edge.numbers
    if wrong.any():
        row = int(wrong.argmax())
        own = client.numbers[row]
        one, other = (_shown(edge, number) for number in (edge.numbers[row], found[own]))
        raise InputError(
            f"{name}: client {_shown(client, own)} is under two edges, {one} and {other}: give each client "
            f"one edge, and clients of different edges different names."
        )
    return found


def _text(name: str, column: str, row: int, value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if not isinstance(value, str):
        raise InputError(
            f"{name}: `{column}` must be integers or text (found {type(value).__name__} in row {row})."
        )
    if not value.strip():
        raise InputError(f"{name}: `{column}` has an empty name in row {row}: fill it in.")
    if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
        raise InputError(f"{name}: `{column}` has a name in row {row} that cannot be written as UTF-8.")
    return value


def _shown(owners: Owners, number: Any) -> str:
    return repr(owners.names[number]) if owners.names else str(number)

"""What a server and its members sent each other in a cloud round, and who was missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from sfedhp.wire.ledger import Entry

WAYS: Final = ("down", "up", "score_down", "score_up")  # of training; of counting how good models are


class Books:
    """Bytes, messages and weights that are not zero, by way and member; plain numbers, to be sent on."""

    def __init__(self, members: int, saved: Mapping[str, Any] | None = None):
        saved = saved or {}
        self._columns = {way: saved.get(way) or [[0] * members for _ in Entry._fields] for way in WAYS}
        self.missing = Counter(saved.get("missing", {}))  # turns that each member missed, by name

    def book(self, way: str, seat: int, size: int, messages: int, nonzeros: int) -> None:
        """Add a message to or from a member."""
        for column, amount in zip(self._columns[way], (size, messages, nonzeros), strict=True):
            column[seat] += amount

    def add(self, saved: Mapping[str, Any]) -> None:
        """Add what another book of the same members has."""
        for way in WAYS:
            for column, more in zip(self._columns[way], saved[way], strict=True):
                column[:] = [one + another for one, another in zip(column, more, strict=True)]
        self.missing.update(saved["missing"])

    def saved(self) -> dict[str, Any]:
        """The same as plain values."""
        return {**self._columns, "missing": dict(self.missing)}

    def entry(self, way: str) -> Entry:
        """One way, (members,) each."""
        return Entry(*(torch.tensor(column) for column in self._columns[way]))


def stacked(books: Sequence[Books], way: str) -> Entry:
    """One way of several servers, (servers, members) each."""
    return Entry(*(torch.stack(parts) for parts in zip(*(each.entry(way) for each in books), strict=True)))

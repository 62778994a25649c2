"""Traffic counters of a server: bytes, messages and nonzero weights by member, and missed requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn.utils.rnn import pad_sequence

from sfedhp.deploy.messaging.protocol import Kind
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Entry

FLOWS: Final = ("down", "up", "score_down", "score_up")  # training, and evaluation of models
# Totals before the first round, and keys of secure aggregation; left out if there are none.
OPTIONAL: Final = ("sum_down", "sum_up", "key_down", "key_up")
# Under which flow a message is counted; heartbeats and farewells are not.
_FLOW_OF: Final = {
    Kind.WORK: "down",
    Kind.OFFER: "down",
    Kind.CONFIRM: "down",
    Kind.UNMASK: "down",
    Kind.REPLY: "up",
    Kind.OFFERS: "up",
    Kind.CONFIRMED: "up",
    Kind.SHARES: "up",
    Kind.SCORE: "score_down",
    Kind.SCORES: "score_up",
    Kind.SUM: "sum_down",
    Kind.SUMS: "sum_up",
    Kind.KEY: "key_down",
    Kind.KEYS: "key_up",
}
# Messages that masks need; they contain no model.
_BESIDE: Final = (Kind.OFFER, Kind.OFFERS, Kind.CONFIRM, Kind.CONFIRMED, Kind.UNMASK, Kind.SHARES)


class Traffic:
    """What a server and its members sent each other, by flow and seat, as plain numbers."""

    def __init__(self, members: int, saved: Mapping[str, Any] | None = None):
        saved = saved or {}
        flows = (*FLOWS, *OPTIONAL)
        self._columns = {flow: saved.get(flow) or [[0] * members for _ in Entry._fields] for flow in flows}
        self.missing = Counter(saved.get("missing", {}))  # requests that each member missed, by name

    def add_message(self, kind: Kind, seat: int, size: int, nonzeros: int = 0) -> None:
        """Count a message to or from a member by its kind; what ends a run is not counted."""
        if kind in _FLOW_OF:
            self.add(_FLOW_OF[kind], seat, size, int(kind not in _BESIDE), nonzeros)

    def add(self, flow: str, seat: int, size: int, messages: int, nonzeros: int) -> None:
        """Count a message to or from a member."""
        for column, amount in zip(self._columns[flow], (size, messages, nonzeros), strict=True):
            column[seat] += amount

    def merge(self, saved: Mapping[str, Any]) -> None:
        """Add the counters of another `to_dict` with the same members."""
        for flow in (*FLOWS, *(flow for flow in OPTIONAL if flow in saved)):
            for column, more in zip(self._columns[flow], saved[flow], strict=True):
                column[:] = [one + another for one, another in zip(column, more, strict=True)]
        self.missing.update(saved["missing"])

    def to_dict(self) -> dict[str, Any]:
        """The counters as JSON values, for a message or a file."""
        used = {flow: self._columns[flow] for flow in OPTIONAL if any(self._columns[flow][0])}
        return {**{flow: self._columns[flow] for flow in FLOWS}, **used, "missing": dict(self.missing)}

    def bytes_of(self, up: Direction) -> dict[str, int]:
        """The bytes of all members by direction, as columns of the history call them without `bytes_`.

        Args:
            up: the direction from the members to the server.
        """
        found = {}
        for flow in (*FLOWS, *OPTIONAL):
            *kind, way = flow.split("_")
            direction = "_".join([*kind, up if way == "up" else up.down])
            if total := sum(self._columns[flow][0]):
                found[direction] = total
        return found

    def entry(self, flow: str) -> Entry:
        """The counters of one flow, (members,) each."""
        return Entry(*(torch.tensor(column) for column in self._columns[flow]))


def bytes_of(row: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of a row of a history by direction."""
    return {name.removeprefix("bytes_"): value for name, value in row.items() if name.startswith("bytes_")}


def stack(servers: Sequence[Traffic], flow: str) -> Entry:
    """The counters of one flow of several servers, (servers, most members of one) each; 0 for no member."""
    entries = [each.entry(flow) for each in servers]
    return Entry(*(pad_sequence(list(parts), batch_first=True) for parts in zip(*entries, strict=True)))

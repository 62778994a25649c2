"""Traffic counters of a server: bytes, messages and nonzero weights by member, and missed requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn.utils.rnn import pad_sequence

from sfedhp.wire.ledger import Entry

FLOWS: Final = ("down", "up", "score_down", "score_up")  # training, and evaluation of models
SUMMING: Final = ("sum_down", "sum_up")  # totals before the first round; left out where there are none


class Traffic:
    """What a server and its members sent each other, by flow and seat, as plain numbers."""

    def __init__(self, members: int, saved: Mapping[str, Any] | None = None):
        saved = saved or {}
        flows = (*FLOWS, *SUMMING)
        self._columns = {flow: saved.get(flow) or [[0] * members for _ in Entry._fields] for flow in flows}
        self.missing = Counter(saved.get("missing", {}))  # requests that each member missed, by name

    def add(self, flow: str, seat: int, size: int, messages: int, nonzeros: int) -> None:
        """Count a message to or from a member."""
        for column, amount in zip(self._columns[flow], (size, messages, nonzeros), strict=True):
            column[seat] += amount

    def merge(self, saved: Mapping[str, Any]) -> None:
        """Add the counters of another `to_dict` with the same members."""
        for flow in (*FLOWS, *(flow for flow in SUMMING if flow in saved)):
            for column, more in zip(self._columns[flow], saved[flow], strict=True):
                column[:] = [one + another for one, another in zip(column, more, strict=True)]
        self.missing.update(saved["missing"])

    def to_dict(self) -> dict[str, Any]:
        """The counters as JSON values, for a message or a file."""
        used = {flow: self._columns[flow] for flow in SUMMING if any(self._columns[flow][0])}
        return {**{flow: self._columns[flow] for flow in FLOWS}, **used, "missing": dict(self.missing)}

    def entry(self, flow: str) -> Entry:
        """The counters of one flow, (members,) each."""
        return Entry(*(torch.tensor(column) for column in self._columns[flow]))


def stack(servers: Sequence[Traffic], flow: str) -> Entry:
    """The counters of one flow of several servers, (servers, most members of one) each; 0 for no member."""
    entries = [each.entry(flow) for each in servers]
    return Entry(*(pad_sequence(list(parts), batch_first=True) for parts in zip(*entries, strict=True)))

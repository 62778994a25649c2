"""Logs whose uploads a robust rule cut, and how often."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sfedhp.core.aggregation import Cut
from sfedhp.deploy.event_log import EventLog


class CutLog:
    """Adds up what was cut of each member's uploads; writes one line for each cloud round."""

    def __init__(self, log: EventLog, names: Sequence[str]):
        self._log, self._names = log, names
        self._clear()

    def add(self, cut: Cut) -> None:
        """Add what was cut in one aggregation."""
        self._turns += 1
        self._trimmed += cut.trimmed.double()
        self._clipped += cut.clipped

    def write(self, cloud_round: int) -> None:
        """Write the number of aggregations, the mean share of trimmed coordinates, and the number of clips.

        Members without any cut are left out.
        """
        if self._turns:
            trimmed = (self._trimmed / self._turns).tolist()
            self._log.write(
                "cut",
                round=cloud_round,
                turns=self._turns,
                trimmed={
                    name: round(share, 3) for name, share in zip(self._names, trimmed, strict=True) if share
                },
                clipped={
                    name: times
                    for name, times in zip(self._names, self._clipped.tolist(), strict=True)
                    if times
                },
            )
        self._clear()

    def _clear(self) -> None:
        members = len(self._names)
        self._turns = 0
        self._trimmed = torch.zeros(members, dtype=torch.float64)
        self._clipped = torch.zeros(members, dtype=torch.int64)

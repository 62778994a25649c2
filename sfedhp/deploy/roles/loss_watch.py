"""Decides whether a run has diverged, by the reports of most clients: one false loss must not end it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sfedhp.runs.divergence import EXPLOSION
from sfedhp.runs.metrics import ClientReport


class LossWatch:
    """Compares the training loss that each client reports with the first it reported."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        self._exploded: dict[str, bool] = {}  # by its newest report, also of a client that is away now

    def note(self, reports: Mapping[str, ClientReport]) -> None:
        """Take the reports of an evaluation, by client."""
        for name, report in reports.items():
            for loss in _losses(report):
                first = self._first.setdefault(name, loss)
                self._exploded[name] = not (math.isfinite(loss) and loss <= EXPLOSION * max(first, 0.0))

    def most_exploded(self) -> bool:
        """Whether the losses of more than half of the clients are not finite, or far above their first."""
        return 2 * sum(self._exploded.values()) > len(self._exploded)


def _losses(report: ClientReport) -> Iterable[float]:
    """The client's loss of a training row, if it reports one."""
    for _, rows, loss in report.get("train", {}).values():
        if rows:
            yield loss / rows

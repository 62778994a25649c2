"""Whether most clients say that a run has diverged: one false loss must not end the run of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sfedhp.runs.divergence import EXPLOSION
from sfedhp.runs.metrics import ClientReport


class LossWatch:
    """Compares the training loss that each client reports with the first it reported."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        self._exploded = self._reported = 0  # clients, at the last evaluation

    def note(self, reports: Mapping[str, ClientReport]) -> None:
        """Take the reports of an evaluation, by client."""
        losses = {name: loss for name, report in reports.items() for loss in _losses(report)}
        self._reported, self._exploded = len(losses), 0
        for name, loss in losses.items():
            first = self._first.setdefault(name, loss)
            self._exploded += not (math.isfinite(loss) and loss <= EXPLOSION * max(first, 0.0))

    def most_exploded(self) -> bool:
        """Whether the losses of at least half of the clients are not finite, or far above their first."""
        return 2 * self._exploded >= self._reported > 0


def _losses(report: ClientReport) -> Iterable[float]:
    """The client's loss of a training row, if it reports one."""
    for _, rows, loss in report.get("train", {}).values():
        if rows:
            yield loss / rows

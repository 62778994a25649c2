"""The figures in a role's status: accuracies on the rows below it, missing members, bytes so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sfedhp.deploy.messaging.traffic import Traffic
from sfedhp.nn.problems import KINDS, Metric
from sfedhp.runs.hints import SeenClasses
from sfedhp.runs.metrics import ClientReport, metrics_of_reports
from sfedhp.wire.direction import Direction


class Figures:
    """The figures of an edge or a client, for `sfedhp status` and Prometheus; no run depends on them."""

    def __init__(self, metric: Metric, up: Direction):
        """Start without figures.

        Args:
            metric: the main one of the run.
            up: the direction from a client to its server.
        """
        self._metric, self._up = metric, up
        self._row: dict[str, Any] = {}
        self._sent: Counter[str] = Counter()  # since the role was started
        self._classes: dict[str, list[list[int]]] = {}  # held and predicted, by kind of model

    def scored(self, reports: Sequence[ClientReport]) -> None:
        """Keep the main figure of each kind of model on these clients' rows, where it is known."""
        found = metrics_of_reports(reports, [self._metric])
        columns = [self._metric.column(kind) for kind in KINDS]
        known = {name: found[name] for name in columns if math.isfinite(found.get(name, math.nan))}
        self._row = {name: value for name, value in self._row.items() if name not in columns} | known

    def predicted(self, classes: Mapping[str, SeenClasses | None]) -> None:
        """Keep which classes each kind of model predicts for a client's test rows; servers never learn it."""
        self._classes = {
            kind: [sorted(each.held), sorted(each.predicted)] for kind, each in classes.items() if each
        }

    def trained(self, seconds: float, missing: Mapping[str, int] | None = None) -> None:
        """Keep how long the last round took, and which members missed how many of its requests."""
        self._row |= {"seconds": seconds, **({"missing": dict(missing)} if missing else {})}
        if not missing:
            self._row.pop("missing", None)

    def count(self, traffic: Traffic) -> None:
        """Add the bytes of these messages to what was sent so far."""
        self._sent.update(traffic.bytes_of(self._up))

    def to_dict(self) -> dict[str, Any]:
        """The figures as entries of a status."""
        classes = {"classes": self._classes} if self._classes else {}
        return {"row": self._row, "sent": dict(self._sent), **classes}

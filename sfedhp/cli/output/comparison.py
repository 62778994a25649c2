"""The results of several methods as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.filesize import decimal

from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import results
from sfedhp.cli.output.summaries import explain_best, explain_metric
from sfedhp.core.formats import digits, duration
from sfedhp.nn.problems import KINDS, METRICS, Metric

_METHOD = 11  # the longest name of a method with its mark
_COLUMNS = ("last", "validated", "best")


class MethodResult(NamedTuple):
    """One method's row of a comparison."""

    method: str
    summary: Mapping[str, Any] | None  # None if it could not start
    error: str | None  # why it failed, or that it was stopped


def print_comparison(rows: Sequence[MethodResult]) -> None:
    """Print one row per method."""
    console = results()
    columns = [
        Column("method", words=_METHOD),
        *(Column("PM last"), Column("PM valid", spare=5), Column("PM best*", spare=8)),
        *(Column("EM last", spare=1), Column("EM valid", spare=6), Column("EM best*", spare=9)),
        *(Column("GM last"), Column("GM valid", spare=4), Column("GM best*", spare=7)),
        *(Column("time", spare=2), Column("sent", spare=3)),
    ]
    lines = []
    for method, summary, error in rows:
        cells = ["–"] * (len(columns) - 1)
        if summary is not None:
            metric = METRICS[summary["metric"]]
            cells = [
                *(
                    _short(metric, summary[f"{metric.column(kind)}_{column}"])
                    for kind in KINDS
                    for column in _COLUMNS
                ),
                *(duration(summary["seconds"]), decimal(summary["bytes_total"])),
            ]
        lines.append([f"{method}†" if error else method, *cells])
    explain_best(console, print_table(console, columns, lines))
    explain_metric(console, [row.summary for row in rows if row.summary is not None])
    for method, _, error in rows:
        if error:
            console.print(f"† {method}: {error}")


def _short(metric: Metric, value: float | None) -> str:
    """A percentage with one decimal, 100 with none to keep the width of a row; others with three digits."""
    if value is None:
        return "–"
    return f"{value:.1f}"[:4].rstrip(".") if metric.percent else digits(value, 3)

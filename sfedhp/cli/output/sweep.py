"""The results of a sweep as one table: a line per setting, mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import results
from sfedhp.cli.output.summaries import explain_best, explain_metric, stopped_after
from sfedhp.nn.problems import METRICS
from sfedhp.report.facts import estimate

_VALUE = 12  # least width of the column of a value that varies
_COLUMNS = (("pm", "last"), ("em", "last"), ("gm", "last"), ("gm", "validated"), ("gm", "best"))


class SweepRun(NamedTuple):
    """One run of a sweep."""

    setting: tuple[tuple[str, str], ...]  # the keys that vary, without the seed
    summary: Mapping[str, Any] | None  # None if it did not start


def print_sweep(runs: Sequence[SweepRun]) -> None:
    """Print one line per setting: mean ± standard deviation over its seeds."""
    console = results()
    groups: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
    sizes: dict[tuple[tuple[str, str], ...], int] = {}
    for setting, summary in runs:
        sizes[setting] = sizes.get(setting, 0) + 1
        groups.setdefault(setting, []).extend([summary] if summary is not None else [])
    keys = _columns_of_keys([dict(setting) for setting in groups])
    stopped = any(_stopped_rounds(group, sizes[setting]) for setting, group in groups.items())
    columns = [
        *(Column("+".join(names), words=_VALUE) for names in keys.values()),
        Column("runs"),
        *([Column("stopped in round")] if stopped else []),
        *(Column("PM last"), Column("EM last", spare=1), Column("GM last")),
        *(Column("GM validated", spare=2), Column("GM best*", spare=3)),
    ]
    rows = []
    for setting, group in groups.items():
        values = dict(setting)
        finished = [summary for summary in group if summary["finished"]]
        shown = finished or [summary for summary in group if not summary["trouble"]]
        size = sizes[setting]
        rows.append(
            [
                *(values[key] for key in keys),
                str(size) if len(finished) == size else f"{len(finished)} of {size}",
                *([_stopped_rounds(group, size)] if stopped else []),
                *(_mean_and_deviation(shown, *column) for column in _COLUMNS),
            ]
        )
    explain_best(console, print_table(console, columns, rows))
    if any("±" in cell for row in rows for cell in row):
        console.print("± is the standard deviation over the runs of a line, which differ in their seeds.")
    explain_metric(console, [summary for _, summary in runs if summary is not None])
    if stopped:
        console.print("A line without a finished run shows the numbers of the round in which it was stopped.")
    for _, summary in runs:
        if summary is not None and summary["trouble"]:
            console.print(f"{summary['folder']}: {summary['trouble']}", soft_wrap=True)


def _columns_of_keys(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The columns of the keys that vary: a key, and the names of all keys with the same values in every line.

    A key is named by its last part if no other key ends in the same.
    """
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    ends = [key.rpartition(".")[2] for key in keys]
    columns: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for key, end in zip(keys, ends, strict=True):
        values = tuple(setting[key] for setting in settings)
        columns.setdefault(values, (key, []))[1].append(end if ends.count(end) == 1 else key)
    return dict(columns.values())


def _stopped_rounds(group: Sequence[Mapping[str, Any]], size: int) -> str:
    """The rounds in which runs of a line were stopped; empty if none was."""
    rounds = sorted({done for summary in group if (done := stopped_after(summary)) is not None})
    return ", ".join(str(done) for done in rounds) or ("not started" if len(group) < size else "")


def _mean_and_deviation(summaries: Sequence[Mapping[str, Any]], kind: str, which: str) -> str:
    if not summaries:
        return "–"
    metric = METRICS[summaries[0]["metric"]]
    found = [summary.get(f"{metric.column(kind)}_{which}") for summary in summaries]
    values = [value for value in found if value is not None]
    if not values:
        return "–"
    return estimate(values).text(metric)

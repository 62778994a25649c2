"""Results for people, and the same for programs. Only these go to stdout."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.filesize import decimal

from sfedhp.cli.output.columns import Column, counted, packed, print_table
from sfedhp.runs.loop import Run
from sfedhp.runs.metrics import KINDS

NAMES = {
    "pm": "PM, personal models",
    "em": "EM, edge models",
    "gm": "GM, global model",
}
_WIDTH = 120  # of what is not a terminal: nobody should read a table cut at 80 columns in a file
_LABEL = 10  # of the lines below a run's table
_VALUE = 12  # so narrow a long value of a sweep may be set
_MODEL = 9  # and the name of a kind of models
_METHOD = 11  # no method's name is longer, with its mark
_COMPARED = ("last", "validated", "best")
_SWEPT = ("pm_last", "em_last", "gm_last", "gm_validated", "gm_best")
_MARK = "* best of all rounds, chosen on the test data: too optimistic to report alone."


class Compared(NamedTuple):
    """One method's row of a comparison."""

    method: str
    summary: Mapping[str, Any] | None  # None where it could not even start
    trouble: str | None  # what went wrong, or that it was stopped


class Swept(NamedTuple):
    """One run of a sweep."""

    setting: tuple[tuple[str, str], ...]  # what varies, but for the seed
    summary: Mapping[str, Any] | None  # None where it did not begin


def results() -> Console:
    """Where results are printed."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    return console


def print_json(value: Any) -> None:
    """One JSON value; what is not finite has no place in JSON and is null."""
    click.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def print_run(run: Run) -> None:
    """The final figures of a run, and where its files are."""
    console, summary = results(), run.summary
    console.print(_title(run), style="bold", soft_wrap=True)
    columns = [
        *(Column("accuracy, %", words=_MODEL), Column("last"), Column("best*", spare=1)),
        *(Column("validated (round)"), Column("macro", spare=4), Column("spread", spare=3)),
        Column("worst decile", spare=2),
    ]
    rows = [
        (
            NAMES[kind],
            *(_percent(summary[f"{kind}_{column}"]) for column in ("last", "best")),
            _chosen(summary[f"{kind}_validated"], summary[f"{kind}_validated_round"]),
            *(_percent(summary[f"{kind}_{column}_last"]) for column in ("macro", "spread", "worst")),
        )
        for kind in KINDS
    ]
    _explain(console, print_table(console, columns, rows))
    for kind in ("em", "gm"):
        local, averaged = summary[f"{kind}_local_last"], summary[f"{kind}_averaged_last"]
        if local != averaged:
            console.print(
                f"{kind.upper()} with each client's own batch-norm statistics {_percent(local)}, "
                f"with averaged ones {_percent(averaged)}."
            )
    densities = [
        f"{kind} {summary[f'density_{kind}']:.3f}"
        for kind in ("client", "edge", "global")
        if summary[f"density_{kind}"] is not None
    ]
    if densities:
        densities[-1] += f" (share of weights ≥ {run.experiment.density_threshold:g})"
        _print_parts(console, "density", densities)
    _print_parts(console, "sent", _sent(summary) or ["nothing"])
    links = [name.removeprefix("link_seconds_") for name in summary if name.startswith("link_seconds_")]
    if links:
        each = [f"{link.replace('_', ' ↔ ')} {_cost(summary, f'_{link}')}" for link in links]
        each[0] = f"{_cost(summary)} without computing ({each[0]}"
        each[-1] += ")"
        _print_parts(console, "links", each)
    console.print(f"time      {_duration(summary['seconds'])} for {counted(summary['rounds'], 'round')}")
    if run.folder is not None:
        _print_folder(console, run.folder)


def print_comparison(rows: Sequence[Compared]) -> None:
    """One row a method."""
    console = results()
    columns = [
        Column("method", words=_METHOD),
        *(Column("PM last"), Column("PM valid", spare=5), Column("PM best*", spare=8)),
        *(Column("EM last", spare=1), Column("EM valid", spare=6), Column("EM best*", spare=9)),
        *(Column("GM last"), Column("GM valid", spare=4), Column("GM best*", spare=7)),
        *(Column("time", spare=2), Column("sent", spare=3)),
    ]
    lines = []
    for method, summary, trouble in rows:
        figures = ["–"] * (len(columns) - 1)
        if summary is not None:
            figures = [
                *(_short(summary[f"{kind}_{figure}"]) for kind in KINDS for figure in _COMPARED),
                *(_duration(summary["seconds"]), decimal(summary["bytes_total"])),
            ]
        lines.append([f"{method}†" if trouble else method, *figures])
    _explain(console, print_table(console, columns, lines))
    for method, _, trouble in rows:
        if trouble:
            console.print(f"† {method}: {trouble}")


def stopped_after(summary: Mapping[str, Any]) -> int | None:
    """The last round of a run that was stopped; None where it went to its end, or diverged."""
    done: int = summary["rounds"]
    return None if summary["finished"] or summary["trouble"] else done


def print_sweep(runs: Sequence[Swept]) -> None:
    """One line a setting: mean ± standard deviation over its seeds."""
    console = results()
    groups: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
    sizes: dict[tuple[tuple[str, str], ...], int] = {}
    for setting, summary in runs:
        sizes[setting] = sizes.get(setting, 0) + 1
        groups.setdefault(setting, []).extend([summary] if summary is not None else [])
    keys = _together([dict(setting) for setting in groups])
    halted = any(_halted(group, sizes[setting]) for setting, group in groups.items())
    columns = [
        *(Column("+".join(names), words=_VALUE) for names in keys.values()),
        Column("runs"),
        *([Column("stopped in round")] if halted else []),
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
                *([_halted(group, size)] if halted else []),
                *(_spread(shown, figure) for figure in _SWEPT),
            ]
        )
    _explain(console, print_table(console, columns, rows))
    if halted:
        console.print(
            "Where no run of a line is finished, its figures are those of the round it was stopped in."
        )
    for _, summary in runs:
        if summary is not None and summary["trouble"]:
            console.print(f"{summary['folder']}: {summary['trouble']}", soft_wrap=True)


def _together(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The keys that vary, each with the names of those that have its value in every line.

    A key is called by its last part where no other has the same.
    """
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    ends = [key.rpartition(".")[2] for key in keys]
    columns: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for key, end in zip(keys, ends, strict=True):
        values = tuple(setting[key] for setting in settings)
        columns.setdefault(values, (key, []))[1].append(end if ends.count(end) == 1 else key)
    return dict(columns.values())


def _halted(group: Sequence[Mapping[str, Any]], size: int) -> str:
    """In which rounds runs of a line were stopped, where some were."""
    rounds = sorted({done for summary in group if (done := stopped_after(summary)) is not None})
    return ", ".join(str(done) for done in rounds) or ("not begun" if len(group) < size else "")


def _spread(summaries: Sequence[Mapping[str, Any]], figure: str) -> str:
    values = [summary[figure] for summary in summaries if summary[figure] is not None]
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _title(run: Run) -> str:
    experiment = run.experiment
    state = "" if run.finished else ", not finished"
    return f"{experiment.algorithm_name} on {experiment.data.source}, seed {experiment.seed}{state}"


def _explain(console: Console, shown: Collection[str]) -> None:
    """The mark of what is best, where it is shown."""
    if any(heading.endswith("best*") for heading in shown):
        console.print(_MARK)


def _short(value: float | None) -> str:
    # A perfect score has no decimal, so that a row keeps its width.
    return "–" if value is None else f"{value:.1f}"[:4].rstrip(".")


def _sent(summary: Mapping[str, Any]) -> list[str]:
    directions = [name for name in summary if name.startswith("bytes_") and name != "bytes_total"]
    return [
        f"{name.removeprefix('bytes_').replace('_', ' → ')} {decimal(summary[name])}" for name in directions
    ]


def _cost(summary: Mapping[str, Any], link: str = "") -> str:
    """What the messages took on a link, or on all."""
    took, joules = _duration(summary[f"link_seconds{link}"]), summary.get(f"link_joules{link}")
    return took if joules is None else f"{took}, {joules:,.1f} J"


def _print_parts(console: Console, label: str, parts: Sequence[str]) -> None:
    """A labelled line; what has no room goes on below, under the first part."""
    for turn, line in enumerate(packed(parts, console.width - _LABEL)):
        console.print(f"{'' if turn else label:<{_LABEL}}{line}", soft_wrap=True)


def _print_folder(console: Console, folder: Path) -> None:
    models = len(list((folder / "models").glob("*.safetensors")))
    console.print(f"folder    {folder}", soft_wrap=True)
    console.print("            config.toml                  what was run, every option")
    console.print("            history.jsonl, history.csv   a row a round")
    console.print(f"            models/                      {counted(models, 'model')}, safetensors")
    console.print("            checkpoint/                  for `sfedhp resume`")
    console.print("            environment.json             versions and machine")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _chosen(value: float | None, round_: int | None) -> str:
    return "–" if value is None else f"{value:.2f} ({round_})"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

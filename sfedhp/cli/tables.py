"""Results for people, and the same for programs. Only these go to stdout."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from sfedhp.driving import Run
from sfedhp.evaluation import KINDS

NAMES = {
    "pm": "PM, personal models",
    "em": "EM, edge models",
    "gm": "GM, global model",
}
_WIDTH = 120  # of what is not a terminal: nobody should read a table cut at 80 columns in a file
_MARK = "* best of all rounds, chosen on the test data: too optimistic to report alone."


class Compared(NamedTuple):
    """One method's row of a comparison."""

    method: str
    summary: Mapping[str, Any] | None  # None where it could not even start
    trouble: str | None  # what went wrong


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
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("accuracy, %")
    for heading in ("last", "best*", "validated\n(round)", "macro", "spread", "worst\ndecile"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind in KINDS:
        table.add_row(
            NAMES[kind],
            *(_percent(summary[f"{kind}_{column}"]) for column in ("last", "best")),
            _chosen(summary[f"{kind}_validated"], summary[f"{kind}_validated_round"]),
            *(_percent(summary[f"{kind}_{column}_last"]) for column in ("macro", "spread", "worst")),
        )
    console.print(table)
    console.print(_MARK)
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
        console.print(
            f"density   {', '.join(densities)} (share of weights of at least "
            f"{run.experiment.density_threshold:g})"
        )
    console.print(f"sent      {', '.join(_sent(summary)) or 'nothing'}")
    links = [name.removeprefix("link_seconds_") for name in summary if name.startswith("link_seconds_")]
    if links:
        each = (f"{link.replace('_', ' ↔ ')} {_cost(summary, f'_{link}')}" for link in links)
        console.print(f"links     {_cost(summary)} without computing ({', '.join(each)})")
    console.print(f"time      {_duration(summary['seconds'])} for {summary['rounds']} rounds")
    if run.folder is not None:
        _print_folder(console, run.folder)


def print_comparison(rows: Sequence[Compared]) -> None:
    """One row a method."""
    console = results()
    table = Table(box=box.MINIMAL, padding=0, show_edge=False)  # fits 80 columns
    table.add_column("method", no_wrap=True)
    for kind in KINDS:
        table.add_column(f"{kind.upper()}, %\nlast valid best*", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("sent", justify="right", no_wrap=True)
    for method, summary, trouble in rows:
        name = f"{method} †" if trouble else method
        if summary is None:
            table.add_row(name, *(5 * ["–"]))
            continue
        table.add_row(
            name,
            *(_three(summary, kind) for kind in KINDS),
            _duration(summary["seconds"]),
            decimal(summary["bytes_total"]),
        )
    console.print(table)
    console.print(_MARK)
    for method, _, trouble in rows:
        if trouble:
            console.print(f"† {method}: {trouble}")


def print_sweep(
    settings: Sequence[Sequence[tuple[str, str]]], summaries: Sequence[Mapping[str, Any]]
) -> None:
    """One line a setting: mean ± standard deviation over its seeds."""
    console = results()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    groups: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
    for setting, summary in zip(settings, summaries, strict=True):
        groups.setdefault(tuple(setting), []).append(summary)
    keys = list(dict.fromkeys(key for setting in groups for key, _ in setting))
    for key in keys:
        table.add_column(key, overflow="fold")
    for heading in ("runs", "PM last", "EM last", "GM last", "GM validated", "GM best*"):
        table.add_column(heading, justify="right", no_wrap=True)
    for setting, group in groups.items():
        sound = [summary for summary in group if not summary["trouble"]]
        count = str(len(group)) if len(sound) == len(group) else f"{len(sound)} of {len(group)}"
        figures = ("pm_last", "em_last", "gm_last", "gm_validated", "gm_best")
        values = dict(setting)
        table.add_row(*(values[key] for key in keys), count, *(_spread(sound, figure) for figure in figures))
    console.print(table)
    console.print(_MARK, soft_wrap=True)
    for summary in summaries:
        if summary["trouble"]:
            console.print(f"{summary['folder']}: {summary['trouble']}", soft_wrap=True)


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


def _three(summary: Mapping[str, Any], kind: str) -> str:
    values = [summary[f"{kind}_{column}"] for column in ("last", "validated", "best")]
    if values[0] is None:
        return "–"
    last, validated, best = (f"{value:.1f}" if value is not None else "–" for value in values)
    return f"{last:>4} {validated:>5} {best:>5}"


def _sent(summary: Mapping[str, Any]) -> list[str]:
    directions = [name for name in summary if name.startswith("bytes_") and name != "bytes_total"]
    return [
        f"{name.removeprefix('bytes_').replace('_', ' → ')} {decimal(summary[name])}" for name in directions
    ]


def _cost(summary: Mapping[str, Any], link: str = "") -> str:
    """What the messages took on a link, or on all."""
    took, joules = _duration(summary[f"link_seconds{link}"]), summary.get(f"link_joules{link}")
    return took if joules is None else f"{took}, {joules:,.1f} J"


def _print_folder(console: Console, folder: Path) -> None:
    models = len(list((folder / "models").glob("*.safetensors")))
    console.print(f"folder    {folder}", soft_wrap=True)
    console.print("            config.toml                  what was run, every option")
    console.print("            history.jsonl, history.csv   a row a round")
    console.print(f"            models/                      {models} models, safetensors")
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

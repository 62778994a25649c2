"""The result of one run as a table, with what it sent and where its files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from sfedhp.cli.output.columns import Column, pack, print_table
from sfedhp.cli.output.console import results
from sfedhp.cli.output.summaries import explain_best
from sfedhp.core.formats import counted, duration
from sfedhp.nn.problems import KINDS, METRICS, Metric
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.runs.results import Run
from sfedhp.wire.direction import Direction

NAMES = {
    "pm": "PM, personal models",
    "em": "EM, edge models",
    "gm": "GM, global model",
}
_LABEL = 10  # width of the labels below the table
_MODEL = 9  # least width of the first column


def print_run(run: Run) -> None:
    """Print the final accuracies of a run, what it sent and took, and where its files are."""
    console, summary = results(), run.summary
    console.print(_title(run), style="bold", soft_wrap=True)
    print_accuracies(console, summary)
    densities = [
        f"{kind} {summary[f'density_{kind}']:.3f}"
        for kind in ("client", "edge", "global")
        if summary[f"density_{kind}"] is not None
    ]
    if densities:
        densities[-1] += f" (share of weights ≥ {run.experiment.density_threshold:g})"
        _print_parts(console, "density", densities)
    _print_parts(console, "sent", _sent_bytes(summary) or ["nothing"])
    links = [name.removeprefix("link_seconds_") for name in summary if name.startswith("link_seconds_")]
    if links:
        each = [f"{link.replace('_', ' ↔ ')} {_cost(summary, f'_{link}')}" for link in links]
        each[0] = f"{_cost(summary)} without computing ({each[0]}"
        each[-1] += ")"
        _print_parts(console, "links", each)
    print_privacy(console, summary, run.experiment.privacy)
    console.print(f"time      {duration(summary['seconds'])} for {counted(summary['rounds'], 'round')}")
    if run.folder is not None:
        print_folder(console, run.folder)


def print_privacy(console: Console, summary: Mapping[str, Any], options: PrivacyOptions) -> None:
    """Print what a private run has spent."""
    if "epsilon" in summary:
        console.print(f"privacy   {options.in_words(summary['epsilon'])}", soft_wrap=True)


def print_accuracies(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the final figures of each kind of model as a table: the main metric, then the others."""
    metric = METRICS[summary["metric"]]
    columns = [
        *(Column(metric.heading, words=_MODEL), Column("last"), Column("best*", spare=1)),
        *(Column("validated (round)"), Column("macro", spare=4), Column("spread", spare=3)),
        Column("worst decile", spare=2),
    ]
    rows = [
        (
            NAMES[kind],
            *(metric.text(summary[f"{name}_{column}"]) for column in ("last", "best")),
            _figure_and_round(metric, summary[f"{name}_validated"], summary[f"{name}_validated_round"]),
            *(metric.text(summary[f"{name}_{column}_last"]) for column in ("macro", "spread", "worst")),
        )
        for kind in KINDS
        for name in [metric.column(kind)]
    ]
    explain_best(console, print_table(console, columns, rows))
    for kind in ("em", "gm"):
        name = metric.column(kind)
        local, averaged = summary[f"{name}_local_last"], summary[f"{name}_averaged_last"]
        if local != averaged:
            console.print(
                f"{kind.upper()} with each client's own batch-norm statistics {metric.text(local)}, "
                f"with averaged ones {metric.text(averaged)}."
            )
    others = [
        each
        for each in METRICS.values()
        if each != metric and any(f"{each.column(kind)}_last" in summary for kind in KINDS)
    ]
    if others:
        rows = [
            (NAMES[kind], *(each.text(summary.get(f"{each.column(kind)}_last")) for each in others))
            for kind in KINDS
        ]
        columns = [Column("last round", words=_MODEL), *(Column(each.heading) for each in others)]
        print_table(console, columns, rows)


def _title(run: Run) -> str:
    experiment = run.experiment
    state = "" if run.finished else ", not finished"
    return f"{experiment.algorithm_name} on {experiment.data.source}, seed {experiment.seed}{state}"


def _figure_and_round(metric: Metric, value: float | None, round_: int | None) -> str:
    return "–" if value is None else f"{metric.text(value)} ({round_})"


def _sent_bytes(summary: Mapping[str, Any]) -> list[str]:
    return [f"{each.text} {decimal(summary[f'bytes_{each}'])}" for each in Direction.sent_in(summary)]


def _cost(summary: Mapping[str, Any], link: str = "") -> str:
    """The time and energy of the messages on a link, or on all links."""
    took, joules = duration(summary[f"link_seconds{link}"]), summary.get(f"link_joules{link}")
    return took if joules is None else f"{took}, {joules:,.1f} J"


def _print_parts(console: Console, label: str, parts: Sequence[str]) -> None:
    """Print a labelled line; what does not fit continues below, under the first part."""
    for turn, line in enumerate(pack(parts, console.width - _LABEL)):
        console.print(f"{'' if turn else label:<{_LABEL}}{line}", soft_wrap=True)


def print_folder(console: Console, folder: Path) -> None:
    """Print where the files of a run are, as far as they exist."""
    models = len(list((folder / "models").glob("*.safetensors")))
    console.print(f"folder    {folder}", soft_wrap=True)
    for names, content in (
        ("config.toml", "every option of the run"),
        ("history.jsonl, history.csv", "one row per round"),
        (
            ("clients.csv, classes.csv", "the accuracy of each client and class")
            if (folder / "classes.csv").exists()
            else ("clients.csv", "the figures of each client")
        ),
        ("confusion.json", "predicted classes, by true class"),
        ("models/", f"{counted(models, 'model')}, safetensors"),
        ("checkpoint/", "for `sfedhp resume`"),
        ("schema.json", "scaling, columns and classes of the data"),
        ("environment.json", "versions and machine"),
    ):
        if (folder / names.split(",")[0]).exists():
            console.print(f"            {names:<28} {content}")

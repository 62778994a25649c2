"""Progress on stderr: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from sfedhp.nn.problems import main_metric
from sfedhp.paper.campaign import CampaignProgress, CampaignReport
from sfedhp.runs.loop import Progress as Done
from sfedhp.runs.loop import Report

_PAUSE = 10.0  # seconds between two plain lines
Received = Callable[[str, int, int], None]  # a file's name, bytes so far, bytes in all


@contextmanager
def round_progress(title: str) -> Iterator[Report]:
    """Shows the rounds of a run, with GM, PM and the time left."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _RoundLines(title).report
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as bar:
        # The first round is known only when it ends: a resumed run starts in the middle.
        task = bar.add_task(title, total=None, figures="")
        figures: dict[str, _Figures] = {}  # by stack

        def report(done: Done) -> None:
            if done.stack not in figures:
                figures[done.stack] = _Figures()
                bar.reset(task, total=done.rounds)
            bar.update(
                task,
                description=_titled(title, done),
                completed=done.row["round"],
                figures=figures[done.stack].text(done.row),
            )

        yield report


@contextmanager
def download_progress() -> Iterator[Received]:
    """Shows the bytes of files that are downloaded."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_file
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield report


@contextmanager
def campaign_progress() -> Iterator[CampaignReport]:
    """Shows the rounds of a campaign of many runs, and the time left."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _CampaignLines().report
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("left"), console=console) as bar:
        task = bar.add_task("", total=None)

        def report(progress: CampaignProgress) -> None:
            bar.update(task, description=progress.title, completed=progress.done, total=progress.total)

        yield report


def _titled(title: str, done: Done) -> str:
    """The title, with the name of the stack in a sweep."""
    return f"{title} {done.stack}" if done.stack else title


def _print_file(name: str, done: int, total: int) -> None:
    if done == total:
        click.echo(f"{name}: {total} bytes", err=True)


class _Figures:
    """The last evaluated main metric of GM and PM; not every round is evaluated."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def text(self, row: dict[str, Any]) -> str:
        metric = main_metric(row)
        names = {kind: metric.column(kind) for kind in ("gm", "pm")}
        self._last |= {kind: metric.text(row[name]) for kind, name in names.items() if name in row}
        title = "" if metric.percent or not self._last else f"{metric.title}  "
        return title + "  ".join(f"{kind.upper()} {value}" for kind, value in self._last.items())


class _CampaignLines:
    """Prints a line when a stack of runs starts, and then every few seconds."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._printed = float("-inf")
        self._title = ""

    def report(self, progress: CampaignProgress) -> None:
        now = time.monotonic()
        if progress.title == self._title and now - self._printed < _PAUSE:
            return
        self._title, self._printed = progress.title, now
        per_round = (now - self._started_at) / progress.done
        left = timedelta(seconds=round(per_round * (progress.total - progress.done)))
        click.echo(f"{progress.title}: {progress.done} of {progress.total} rounds, {left} left", err=True)


class _RoundLines:
    """Prints a line for the first round, the last, and every few seconds."""

    def __init__(self, title: str):
        self._title = title
        # By stack: its figures, and round and time of its first report.
        self._stacks: dict[str, tuple[_Figures, tuple[int, float]]] = {}
        self._printed = float("-inf")

    def report(self, done: Done) -> None:
        now, number = time.monotonic(), done.row["round"]
        shown, first = self._stacks.setdefault(done.stack, (_Figures(), (number, now)))
        figures = shown.text(done.row)
        if number < done.rounds and now - self._printed < _PAUSE:
            return
        self._printed = now
        parts = [f"{_titled(self._title, done)}: round {number}/{done.rounds}", figures]
        if first[0] < number < done.rounds:
            left = (now - first[1]) / (number - first[0]) * (done.rounds - number)
            parts.append(f"{timedelta(seconds=round(left))} left")
        click.echo("  ".join(part for part in parts if part), err=True)

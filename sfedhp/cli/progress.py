"""How far it is: a bar on a terminal, a plain line now and then elsewhere. Always where messages go."""

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

from sfedhp.paper.campaign import Pace, Watch
from sfedhp.runs.loop import Progress as Done
from sfedhp.runs.loop import Report

_PAUSE = 10.0  # seconds between two plain lines
Received = Callable[[str, int, int], None]  # a file's name, bytes so far, bytes in all


@contextmanager
def rounds_shown(title: str) -> Iterator[Report]:
    """Shows the rounds of a run that are reported to it, with GM, PM and the time left."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(title).report
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as bar:
        # Nothing is known of the rounds before the first one ends: a resumed run begins in the middle.
        task = bar.add_task(title, total=None, figures="")
        figures = _Figures()
        started = False

        def report(done: Done) -> None:
            nonlocal started
            if not started:
                bar.reset(task, total=done.rounds)
                started = True
            bar.update(task, completed=done.row["round"], figures=figures.of(done.row))

        yield report


@contextmanager
def bytes_shown() -> Iterator[Received]:
    """Shows files that grow."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _whole_files
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
def pace_shown() -> Iterator[Watch]:
    """Shows how far a campaign of many runs is, and the time left at its pace so far."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Paces().report
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("left"), console=console) as bar:
        task = bar.add_task("", total=None)

        def report(pace: Pace) -> None:
            bar.update(task, description=pace.title, completed=pace.done, total=pace.total)

        yield report


def _whole_files(name: str, done: int, total: int) -> None:
    if done == total:
        click.echo(f"{name}: {total} bytes", err=True)


class _Figures:
    """The last evaluated GM and PM: not every round has some."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def of(self, row: dict[str, Any]) -> str:
        self._last |= {kind: row[kind] for kind in ("gm", "pm") if kind in row}
        return "  ".join(f"{kind.upper()} {value:.2f}" for kind, value in self._last.items())


class _Paces:
    """A line for every stack of runs that begins, and one every few seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._printed = float("-inf")
        self._title = ""

    def report(self, pace: Pace) -> None:
        now = time.monotonic()
        if pace.title == self._title and now - self._printed < _PAUSE:
            return
        self._title, self._printed = pace.title, now
        left = timedelta(seconds=round((now - self._began) / pace.done * (pace.total - pace.done)))
        click.echo(f"{pace.title}: {pace.done} of {pace.total} rounds, {left} left", err=True)


class _Lines:
    """The first round, the last, and one every few seconds."""

    def __init__(self, title: str):
        self._title = title
        self._figures = _Figures()
        self._first: tuple[int, float] | None = None  # round and time of the first report
        self._printed = float("-inf")

    def report(self, done: Done) -> None:
        now, number = time.monotonic(), done.row["round"]
        figures = self._figures.of(done.row)
        first = self._first = self._first or (number, now)
        if number < done.rounds and now - self._printed < _PAUSE:
            return
        self._printed = now
        parts = [f"{self._title}: round {number}/{done.rounds}", figures]
        if first[0] < number < done.rounds:
            left = (now - first[1]) / (number - first[0]) * (done.rounds - number)
            parts.append(f"{timedelta(seconds=round(left))} left")
        click.echo("  ".join(part for part in parts if part), err=True)

"""Run an experiment on the command line: progress, signals, the result and the exit code."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import click

from sfedhp.cli.output.console import print_json, print_notes
from sfedhp.cli.output.run import print_run
from sfedhp.cli.progress import round_progress
from sfedhp.core.errors import InputError
from sfedhp.report.files import report_run
from sfedhp.runs.hints import hints
from sfedhp.runs.loop import Progress, Report
from sfedhp.runs.results import Outcome, Run
from sfedhp.runs.score_files import read_scores
from sfedhp.runs.tracking.follow import Tracking

DIVERGED = 3  # exit code
_FINISHING = "finishing the round, then saving; a second signal exits at once"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Work = Callable[[Report, Callable[[], bool]], Outcome]


class Ending(NamedTuple):
    """How a run on the command line ended."""

    run: Run
    rounds: int  # done by this command
    error: str | None  # a sentence, if it diverged
    signal: int | None  # the signal that stopped it, if it is not finished


class Interruption:
    """Handles SIGINT and SIGTERM: the first asks to stop, the second exits at once."""

    def __init__(self, notice: str = _FINISHING) -> None:
        """Handle nothing before the block begins.

        Args:
            notice: what to print at the first signal.
        """
        self.signal: int | None = None
        self._notice = notice
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        self._previous = {each: signal.signal(each, self._handle) for each in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)

    def requested(self) -> bool:
        """Whether a signal asked to stop."""
        return self.signal is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise SystemExit(128 + number)
        self.signal = number
        # Unbuffered: the signal may have interrupted code that is writing to the buffer.
        os.write(2, f"\n{self._notice}\n".encode())


def execute(
    title: str, work: Work, within: Interruption | None = None, tracking: Tracking | None = None
) -> Ending:
    """Do the work; show its progress, and stop after the round on a signal.

    Args:
        title: of the progress.
        work: what to do.
        within: handles the signals, where this is one of several works; None: this work does.
        tracking: gets every round, and the end.
    """
    done = 0
    with nullcontext(within) if within else Interruption() as interruption, round_progress(title) as show:

        def report(progress: Progress) -> None:
            nonlocal done
            done += 1
            show(progress)

        with (tracking or Tracking()).follow(report) as tracked:
            run, error = work(tracked, interruption.requested)
    return Ending(run, done, error, None if run.finished else interruption.signal)


def hints_of(ending: Ending) -> list[str]:
    """Hints on the results of the completed rounds; none if the run diverged."""
    run = ending.run
    if ending.error or not ending.rounds:
        return []
    scores = None if run.folder is None else read_scores(run.folder)
    return hints(run.history, scores, finished=run.finished)


def conclude(ending: Ending, *, as_json: bool, no_report: bool) -> None:
    """Print the result with hints, say how to resume a run that was stopped, and exit with the right code.

    Args:
        ending: how the run ended.
        as_json: print the summary as JSON.
        no_report: do not write the page.
    """
    run = ending.run
    if as_json:
        print_json(run.summary)
    else:
        print_run(run)
    print_notes(hints_of(ending))
    if run.folder is not None and not no_report:
        write_page(run.folder, as_json=as_json)
    if ending.error:
        click.echo(f"error: {ending.error}", err=True)
        raise click.exceptions.Exit(DIVERGED)
    if ending.signal is not None:
        click.echo(how_to_resume(run), err=True)
        raise click.exceptions.Exit(128 + ending.signal)


def write_page(folder: Path, *, as_json: bool) -> None:
    """Write the page of the run, or of the runs, in a folder, and name it; stdout is for JSON alone.

    A page that cannot be written does not fail a run that is done: a sentence says why.
    """
    try:
        click.echo(f"Page: {report_run(folder)}", err=as_json)
    except InputError as error:
        click.echo(f"The page was not written: {error}", err=True)


def how_to_resume(run: Run) -> str:
    """How to resume a run that was stopped."""
    done = run.history[-1]["round"] if run.history else 0
    return (
        f"Stopped after round {done} of {run.experiment.rounds}, and saved. "
        f"Resume with: sfedhp resume {shlex.quote(str(run.folder))}"
    )

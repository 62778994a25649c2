"""One run on the command line: a progress bar, signals that are heard, and a word about how it ended."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import click

from sfedhp.cli.output.tables import print_json, print_run
from sfedhp.cli.progress import rounds_shown
from sfedhp.runs.loop import Progress, Report, Run
from sfedhp.runs.run import DivergenceError

DIVERGED = 3  # exit code
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Work = Callable[[Report, Callable[[], bool]], Run]


class Ending(NamedTuple):
    """How a run ended."""

    run: Run
    rounds: int  # done this time
    trouble: str | None  # the sentence, where it diverged
    signal: int | None  # the one that asked to stop, where the run is not finished


class Interruption:
    """Hears SIGINT and SIGTERM: the first asks to stop after the round, the second ends at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        self._before = {each: signal.signal(each, self._hear) for each in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def asked(self) -> bool:
        """Whether to stop after this round."""
        return self.signal is not None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise SystemExit(128 + number)
        self.signal = number
        # Straight to the terminal: the interrupted line of code may itself be writing through a buffer.
        os.write(2, b"\nfinishing the round, then saving; once more ends at once\n")


def execute(title: str, work: Work) -> Ending:
    """Do the work with progress shown and signals heard."""
    done = 0
    with Interruption() as interruption, rounds_shown(title) as show:

        def report(progress: Progress) -> None:
            nonlocal done
            done += 1
            show(progress)

        trouble = None
        try:
            run = work(report, interruption.asked)
        except DivergenceError as error:
            run, trouble = error.run, str(error)
    return Ending(run, done, trouble, None if run.finished else interruption.signal)


def conclude(ending: Ending, *, as_json: bool) -> None:
    """Print the result, say how to go on where there is more to do, and end with the fitting exit code."""
    run = ending.run
    if as_json:
        print_json(run.summary)
    else:
        print_run(run)
    if ending.trouble:
        click.echo(f"error: {ending.trouble}", err=True)
        raise click.exceptions.Exit(DIVERGED)
    if ending.signal is not None:
        click.echo(how_to_go_on(run), err=True)
        raise click.exceptions.Exit(128 + ending.signal)


def how_to_go_on(run: Run) -> str:
    """For a run that was stopped."""
    done = run.history[-1]["round"] if run.history else 0
    return (
        f"Stopped after round {done} of {run.experiment.rounds}, and saved. "
        f"Go on with: sfedhp resume {shlex.quote(str(run.folder))}"
    )

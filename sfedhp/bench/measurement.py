"""Times each side in its own process, in turn, so that a busy machine slows all of them equally."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from sfedhp.core.errors import InputError

_LEAVE = 20.0  # seconds a process gets to end
_WORKER = Path(__file__).with_name("worker.py")


class Plan(NamedTuple):
    """How many rounds are measured, and with how many threads."""

    pairs: int = 5  # measured rounds of every side, in turn; the median counts
    warmups: int = 2  # rounds before them
    threads: tuple[int, ...] = (1, 2)  # every side is measured with each; its better one counts
    patience: float = 120.0  # seconds of warm-ups, and again of pairs, after which no further one is begun


class Timing(NamedTuple):
    """The measurements of one side."""

    seconds: float  # a round: the median, with the better number of threads
    threads: int
    peak_bytes: int
    rounds: int  # that the median is of
    operations: int | None  # of a round's matrix products, by formula; None if not counted
    bytes: int | None  # that a round's operations touch, by formula


class Side:
    """A process that runs one side's rounds on request."""

    def __init__(self, name: str, job: Mapping[str, Any], python: str = sys.executable):
        """Start the process.

        Args:
            name: for messages.
            job: what the worker is to build: `file`, `function`, `device` and what the function needs.
            python: the interpreter.
        """
        self.name = name
        # Closed by `__exit__`, as the process is ended by it.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        environment = dict(os.environ)
        if python == sys.executable:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        try:
            self._process = subprocess.Popen(
                [python, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=environment,
            )
        except OSError as error:
            self._errors.close()
            raise InputError(f"{name}: {python} cannot be run ({error.strerror}).") from None
        try:
            self._ask(job)
        except InputError:
            self.__exit__(None, None, None)
            raise

    def round(self, threads: int) -> float:
        """Seconds of the next round."""
        answer = self._ask({"threads": threads})
        self.peak_bytes: int = answer["peak_bytes"]
        return float(answer["seconds"])

    def accuracy(self) -> tuple[float, float]:
        """The model's current test accuracy in percent, and the seconds of the evaluation."""
        answer = self._ask({"accuracy": True})
        return float(answer["accuracy"]), float(answer["seconds"])

    def count(self) -> tuple[int, int]:
        """Operations and bytes of the next round, by formula."""
        answer = self._ask({"count": True})
        return answer["operations"], answer["bytes"]

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it ends by itself, and with it what it has started
        try:
            self._process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise InputError(f"{self.name} cannot be measured: {self._last_words()}.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1].rstrip(".") if lines else f"it ended with exit code {self._process.returncode}"


def measure(sides: Sequence[Side], plan: Plan, counted: Sequence[str] = ()) -> dict[str, Timing]:
    """Warm all sides up, then let each run a round in turn, as often as planned.

    Args:
        sides: what to measure; their names differ.
        plan: how often.
        counted: names of those whose work is counted, in a round before all others.
    """
    counts = {side.name: side.count() for side in sides if side.name in counted}
    _repeat(sides, plan, plan.warmups)
    turns = _repeat(sides, plan, plan.pairs)
    timings = {}
    for side in sides:
        medians = {
            threads: statistics.median(turn[side.name, threads] for turn in turns) for threads in plan.threads
        }
        best = min(medians, key=medians.__getitem__)
        work = counts.get(side.name, (None, None))
        timings[side.name] = Timing(medians[best], best, side.peak_bytes, len(turns), *work)
    return timings


def _repeat(sides: Sequence[Side], plan: Plan, turns: int) -> list[dict[tuple[str, int], float]]:
    """Let all sides run a round with each number of threads, turn by turn; the seconds of every turn."""
    taken: list[dict[tuple[str, int], float]] = []
    while len(taken) < turns and sum(sum(turn.values()) for turn in taken) <= plan.patience:
        taken.append(
            {(side.name, threads): side.round(threads) for threads in plan.threads for side in sides}
        )
    return taken

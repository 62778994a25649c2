"""Runs an arena: all sides take turns round by round; reports time, accuracy and memory of each side."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from sfedhp.bench import arena_sides
from sfedhp.bench.arenas import Arena
from sfedhp.bench.ceilings import machine
from sfedhp.bench.measurement import Side
from sfedhp.bench.rivals import Rival
from sfedhp.core.types import Precision

OURS, LOOP = "sfedhp", "loop"
_WARMUPS = 2  # rounds of every side before those that count; on a GPU a round is recorded in the second


@dataclass(frozen=True)
class Terms:
    """How an arena is run: device, rounds, threads and precision."""

    rounds: int  # that are measured; as many as the arena has: a whole run
    synthetic: bool  # random images of the data's shape
    device: str
    precision: Precision  # of this package and the loop; a rival has torch's own, see `Entry.precision`
    threads: int
    at_once: int = 0  # clients that this package computes together; 0: as many as memory holds
    loop: bool = True  # whether the plain loop runs too


@dataclass(frozen=True)
class Entry:
    """One line of an arena's table."""

    side: str
    seconds_per_round: float  # the median
    whole_run_seconds: float  # with its evaluations
    extrapolated: bool  # whether it is the median times the rounds, and not a run
    rounds: int  # measured
    peak_bytes: int
    accuracy: float  # percent, after `rounds` and the warm-ups
    ratio: float  # its seconds a round by ours
    precision: str


def run_arena(
    arena: Arena, terms: Terms, rivals: Iterable[Rival], report: Callable[[str], None]
) -> list[Entry]:
    """Run every side round by round, in turn, so that a busy machine slows all of them alike.

    Args:
        arena: what to run.
        terms: how.
        rivals: other code bases.
        report: called with a line after each side is ready and at the end of its rounds.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        data, initial = Path(folder) / "data.npz", Path(folder) / "initial.pt"
        arena.write_data(data, terms.synthetic)
        torch.save(arena.network().state_dict(), initial)
        sides = [stack.enter_context(_own_side(name, arena, terms, data)) for name in _own_names(terms)]
        sides += [
            stack.enter_context(rival.arena_side(arena, terms.device, data, initial)) for rival in rivals
        ]
        for side in sides:
            report(f"{arena.name}: {side.name} is ready.")
        for _ in range(_WARMUPS):
            for side in sides:
                side.round(terms.threads)
        times: dict[str, list[float]] = {side.name: [] for side in sides}
        evaluated: dict[str, list[float]] = {side.name: [] for side in sides}
        for turn in range(1, terms.rounds + 1):
            for side in sides:
                times[side.name].append(side.round(terms.threads))
                if turn % arena.evaluation_every == 0 and turn < terms.rounds:
                    evaluated[side.name].append(side.accuracy()[1])
        ends = {}
        for side in sides:
            ends[side.name], seconds = side.accuracy()
            evaluated[side.name].append(seconds)
        return [
            _entry(arena, terms, side, times[side.name], evaluated[side.name], ends[side.name], times[OURS])
            for side in sides
        ]


def record_of(arena: Arena, terms: Terms, entries: Sequence[Entry]) -> dict[str, Any]:
    """What a file in `results/bench` holds."""
    return {
        "arena": asdict(arena),
        "terms": asdict(terms),
        **circumstances(terms.device),
        "weights": sum(part.numel() for part in arena.network().parameters()),
        "entries": [asdict(entry) for entry in entries],
    }


def circumstances(device: str) -> dict[str, Any]:
    """Where and when something is measured, as records say it."""
    return {
        "machine": machine(device),
        "date": datetime.now(UTC).date().isoformat(),
        "load": round(os.getloadavg()[0], 2),
    }


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record as JSON; creates the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _own_names(terms: Terms) -> list[str]:
    return [OURS, LOOP] if terms.loop else [OURS]


def _own_side(name: str, arena: Arena, terms: Terms, data: Path) -> Side:
    job = {
        "file": arena_sides.__file__,
        "function": "ours" if name == OURS else "loop",
        "arena": asdict(arena),
        "npz": str(data),
        "device": terms.device,
        "precision": terms.precision,
        "at_once": terms.at_once,
    }
    return Side(name, job)


def _entry(
    arena: Arena,
    terms: Terms,
    side: Side,
    seconds: Sequence[float],
    evaluations: Sequence[float],
    accuracy: float,
    ours: Sequence[float],
) -> Entry:
    median, whole = statistics.median(seconds), len(seconds) >= arena.rounds
    each = arena.rounds * median + arena.rounds // arena.evaluation_every * statistics.median(evaluations)
    own = side.name in (OURS, LOOP)
    return Entry(
        side=side.name,
        seconds_per_round=median,
        whole_run_seconds=sum(seconds) + sum(evaluations) if whole else each,
        extrapolated=not whole,
        rounds=len(seconds),
        peak_bytes=side.peak_bytes,
        accuracy=accuracy,
        ratio=median / statistics.median(ours),
        precision=terms.precision if own else _THEIRS[terms.device == "cpu"],
    )


# A rival runs with torch's own settings: on a GPU cuDNN may use TF32, and matrix products may not.
_THEIRS = {True: "float32", False: "float32, convolutions in tf32"}

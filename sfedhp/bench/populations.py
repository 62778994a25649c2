"""How much a round costs that draws some clients of very many, against the same of a thousand."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from sfedhp.bench import population_side
from sfedhp.bench.measurement import Side

SMALL: Final = 1_000  # clients of the population that others are compared with
_WARMUPS: Final = 2


@dataclass(frozen=True)
class PopulationRow:
    """One model on one population."""

    model: str
    clients: int
    cohort: int
    seconds_per_round: float  # the median; on a CPU seconds of the CPU, by one thread
    draw_seconds: float  # of them to draw the clients
    small_seconds_per_round: float  # of a population of `SMALL`
    ratio: float  # without the draws
    peak_bytes: int
    rounds: int


def run_population(
    model: str,
    clients: int,
    cohort: int,
    device: str,
    *,
    rounds: int,
    report: Callable[[str], None],
) -> PopulationRow:
    """Rounds of both populations in turn, each in a process of its own with one thread.

    Args:
        model: a name of MODELS that takes images of 28 × 28.
        clients: of the large population.
        cohort: clients of a round.
        device: that computes.
        rounds: measured of each.
        report: called with a line when both are ready.
    """
    with ExitStack() as stack:
        job = {
            "file": population_side.__file__,
            "function": "Round",
            "model": model,
            "cohort": cohort,
            "device": device,
            "cpu_seconds": device == "cpu",
        }
        sides = {
            count: stack.enter_context(Side(f"{count} clients", {**job, "clients": count}))
            for count in (SMALL, clients)
        }
        report(f"{model}: populations of {SMALL:,} and {clients:,} are ready.")
        times: dict[int, list[float]] = {count: [] for count in sides}
        draws: dict[int, list[float]] = {count: [] for count in sides}
        for turn in range(_WARMUPS + rounds):
            for count, side in sides.items():
                seconds, draw = side.round(threads=1), side.accuracy()[1]
                if turn >= _WARMUPS:
                    times[count].append(seconds)
                    draws[count].append(draw)
        peak = sides[clients].peak_bytes
    large, small = (statistics.median(times[count]) for count in (clients, SMALL))
    large_draw, small_draw = (statistics.median(draws[count]) for count in (clients, SMALL))
    ratio = (large - large_draw) / (small - small_draw)
    return PopulationRow(model, clients, cohort, large, large_draw, small, ratio, peak, rounds)

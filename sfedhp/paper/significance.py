"""Statistics over seeds: paired differences with p-values and 95 % intervals, and Holm's correction.

Implemented here because the core depends on no statistics library; tests compare it with one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.05  # two-sided


@dataclass(frozen=True)
class Difference:
    """Paired differences of two methods: the same seed has the same split and initial weights."""

    mean: float
    half: float | None  # half the width of the 95 % interval; None with one seed
    p: float | None  # of the t-test against a margin, two-sided; None with one seed
    seeds: int


def difference(
    left: Mapping[int, float], right: Mapping[int, float], margin: float = 0.0
) -> Difference | None:
    """Left − right over the common seeds, tested against a margin; None without a common seed."""
    gaps = [value - right[seed] for seed, value in left.items() if seed in right]
    if not gaps:
        return None
    mean, half = statistics.fmean(gaps), half_width(gaps)
    return Difference(mean, half, None if half is None else _p_value(gaps, margin), len(gaps))


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean; None for one value."""
    if len(values) < 2:
        return None
    return critical_value(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def holm(p_values: Sequence[float], planned: int = 0) -> list[float]:
    """p-values of several tests, corrected by Holm's method; in the order given.

    Args:
        p_values: of the tests that were made.
        planned: how many tests there will be; those not made yet count as if they had p = 1. So what is
            significant now stays so when they are made.
    """
    corrected, highest, tests = [0.0] * len(p_values), 0.0, max(planned, len(p_values))
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (tests - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


@cache
def critical_value(freedom: int) -> float:
    """The t that |T| exceeds with probability `LEVEL`."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_probability(middle, freedom) > LEVEL else (low, middle)
    return (low + high) / 2


def format_p(p: float) -> str:
    """A p-value as text; never rounded across the level."""
    if p < 0.001:
        return "p < 0.001"
    near = f"{p:.3f}"
    return f"p = {near}" if (float(near) < LEVEL) == (p < LEVEL) else f"p = {p:.4f}"


def tail_probability(size: float, freedom: int, pieces: int = 1000) -> float:
    """P(|T| > size) of Student's t; over the angle atan(t/√n) its density is a power of cos."""

    def density(angle: float) -> float:
        return max(math.cos(angle), 0.0) ** (freedom - 1)

    top = math.atan(size / math.sqrt(freedom))
    # The tail itself, not 1 − the rest: small probabilities keep their digits.
    tail, whole = (_integral(density, low, math.pi / 2, pieces) for low in (top, 0.0))
    return tail / whole


def _p_value(gaps: Sequence[float], margin: float) -> float:
    mean, spread = statistics.fmean(gaps) - margin, statistics.stdev(gaps)
    if spread == 0:
        return 0.0 if mean else 1.0
    return tail_probability(abs(mean) / spread * math.sqrt(len(gaps)), len(gaps) - 1)


def _integral(function: Callable[[float], float], low: float, high: float, pieces: int) -> float:
    """The integral of a function from `low` to `high`, by Simpson's rule."""
    width = (high - low) / pieces
    inside = sum((4 if turn % 2 else 2) * function(low + turn * width) for turn in range(1, pieces))
    return (function(low) + inside + function(high)) * width / 3

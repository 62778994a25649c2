"""A paired t-test: whether two methods differ by more than the seeds explain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

LEVEL = 0.05  # two-sided


def paired_t_test(left: Mapping[int, float], right: Mapping[int, float]) -> float | None:
    """The two-sided p-value of the mean difference of values by seed; the same seed has the same split.

    None with fewer than two seeds in common. Written out because the core depends on no statistics library.
    """
    differences = [value - right[seed] for seed, value in left.items() if seed in right]
    if len(differences) < 2:
        return None
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread == 0:
        return 0.0 if mean else 1.0
    freedom = len(differences) - 1
    return _tail_probability(abs(mean) / spread * math.sqrt(len(differences)), freedom)


def format_p(p: float | None) -> str:
    """A p-value as text; never rounded across the level."""
    if p is None:
        return "one seed"
    if p < 0.001:
        return "p < 0.001"
    near = f"{p:.3f}"
    return f"p = {near}" if (float(near) < LEVEL) == (p < LEVEL) else f"p = {p:.4f}"


def _tail_probability(size: float, freedom: int, pieces: int = 2000) -> float:
    """P(|T| > size) of Student's t; over the angle atan(t/√n) its density is a power of cos."""
    top, half = math.atan(size / math.sqrt(freedom)), math.pi / 2
    inside, whole = (_area(0.0, end, freedom - 1, pieces) for end in (top, half))
    return max(0.0, 1.0 - inside / whole)


def _area(low: float, high: float, power: int, pieces: int) -> float:
    """The integral of cos(x)^power from `low` to `high`, by Simpson's rule."""
    width = (high - low) / pieces
    total = math.cos(low) ** power + max(math.cos(high), 0.0) ** power
    total += sum((4 if turn % 2 else 2) * math.cos(low + turn * width) ** power for turn in range(1, pieces))
    return total * width / 3

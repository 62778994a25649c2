"""Is a difference between two methods more than the seeds? A paired t-test, for few seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

LEVEL = 0.05  # two-sided


def paired(left: Mapping[int, float], right: Mapping[int, float]) -> float | None:
    """The two-sided p-value of the mean difference between values by seed: the same seed, the same split.

    None with fewer than two seeds in common. Written out because the core has no statistics library.
    """
    differences = [value - right[seed] for seed, value in left.items() if seed in right]
    if len(differences) < 2:
        return None
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread == 0:
        return 0.0 if mean else 1.0
    freedom = len(differences) - 1
    return _beyond(abs(mean) / spread * math.sqrt(len(differences)), freedom)


def worded(chance: float | None) -> str:
    """A p-value for people; never rounded across the level."""
    if chance is None:
        return "one seed"
    if chance < 0.001:
        return "p < 0.001"
    near = f"{chance:.3f}"
    return f"p = {near}" if (float(near) < LEVEL) == (chance < LEVEL) else f"p = {chance:.4f}"


def _beyond(size: float, freedom: int, pieces: int = 2000) -> float:
    """P(|T| > size) of Student's t: over the angle atan(t/√n) its density is a power of cos."""
    top, half = math.atan(size / math.sqrt(freedom)), math.pi / 2
    inside, whole = (_area(0.0, end, freedom - 1, pieces) for end in (top, half))
    return max(0.0, 1.0 - inside / whole)


def _area(low: float, high: float, power: int, pieces: int) -> float:
    width = (high - low) / pieces
    total = math.cos(low) ** power + max(math.cos(high), 0.0) ** power
    total += sum((4 if turn % 2 else 2) * math.cos(low + turn * width) ** power for turn in range(1, pieces))
    return total * width / 3

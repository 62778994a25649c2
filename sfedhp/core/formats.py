"""How numbers are written in tables and pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta


def percent(value: float | None) -> str:
    """An accuracy in percent: 97.83."""
    return "–" if value is None else f"{value:.2f}"


def digits(value: float, most: int) -> str:
    """A number with this many digits, and all that are before the point: 0.3397, 54321, not 5.432e+04."""
    text = f"{value:.{most}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e9 else text


def duration(seconds: float) -> str:
    """A time: 4.2 s, or 0:02:01."""
    return f"{seconds:.1f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


def counted(number: int, noun: str) -> str:
    """A number of things: 1 run, 2 runs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(parts: Sequence[str]) -> str:
    """The parts as a phrase: A, B and C."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def size(number: float) -> str:
    """A number of bytes, in powers of 1000: 912 bytes, 10.2 MB."""
    if number < 1000:
        return counted(round(number), "byte")
    units = ("kB", "MB", "GB", "TB")
    power = min(int(math.log10(number * 1.00005) / 3), len(units))  # 999.95 kB would be written as 1000.0 kB
    return f"{number / 1000**power:,.1f} {units[power - 1]}"

"""How numbers are written in tables and pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


def percent(value: float | None) -> str:
    """An accuracy in percent: 97.83."""
    return "–" if value is None else f"{value:.2f}"


def duration(seconds: float) -> str:
    """A time: 4.2 s, or 0:02:01."""
    return f"{seconds:.1f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


def counted(number: int, noun: str) -> str:
    """A number of things: 1 run, 2 runs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(parts: Sequence[str]) -> str:
    """A, B and C."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))

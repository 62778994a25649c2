"""Shared parts of charts: scales, grid lines, axes, legends and markers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sfedhp.report.drawing import Area, Line, Mark, Point, Text
from sfedhp.report.styles import series_style

WIDTH = 440.0  # of a chart
LEFT, RIGHT = 46.0, 12.0  # margins
CHARACTER = 7.4  # mean width of a character of text, also where phones enlarge it
MARKER = 4.2  # half the size of a marker
_LEGEND_LINE = 18.0


@dataclass(frozen=True)
class Scale:
    """From numbers to places in a drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    step: float = 1.0  # between two grid lines

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def shortened(text: str, most: int) -> str:
    """The text, cut to this many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def legend(names: Sequence[tuple[int, str]], kind: str) -> tuple[list[Mark], float]:
    """The names of the series with samples, in as many lines as needed; and where the chart begins."""
    marks: list[Mark] = []
    x, y = 8.0, 14.0
    for number, name in names:
        name = shortened(name, 40)
        width = 30 + CHARACTER * len(name)
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + _LEGEND_LINE
        if kind == "line":
            marks.append(Line([(x, y - 4), (x + 20, y - 4)], series_style("line", number)))
        else:
            marks.append(Area([marker(number, x + 12, y - 4)], series_style("fill", number)))
        marks.append(Text(x + 25, y, name))
        x += width + 10
    return marks, y + 14


def grid(up: Scale) -> Iterator[Mark]:
    """Horizontal lines with their values."""
    for value in _log_ticks(up.low, up.high) if up.log else _multiples(up.low, up.high, up.step):
        y = up(value)
        yield Line([(LEFT, y), (WIDTH - RIGHT, y)], "grid")
        yield Text(LEFT - 6, y + 4, f"{value:g}", "tick-text", "end")


def round_axis(across: Scale, bottom: float) -> Iterator[Mark]:
    """The axis of cloud rounds."""
    yield Line([(LEFT, bottom), (WIDTH - RIGHT, bottom)], "axis")
    for value in ticks(across.low, across.high, 6, whole=True):
        yield Text(across(value), bottom + 16, f"{value:g}", "tick-text", "middle")
    yield Text((LEFT + WIDTH - RIGHT) / 2, bottom + 31, "cloud round", "tick-text", "middle")


def round_scale(values: Sequence[float]) -> Scale:
    """The scale of an axis of cloud rounds."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    return Scale(low, high, LEFT, WIDTH - RIGHT)


def top_of(values: Sequence[float], unit: str) -> float:
    """Where an axis from zero ends: at 100 for percent."""
    if unit == "%":
        return 100.0
    high = max(values, default=1.0) or 1.0
    step = step_of(high, 5)
    return math.ceil(high / step - 1e-9) * step


def step_of(width: float, most: int) -> float:
    """A round step: 1, 2 or 5 times a power of ten."""
    raw = width / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(size * power for size in (1, 2, 5, 10) if size * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers from low to high."""
    if high <= low:
        return [low]
    step = step_of(high - low, most)
    step = max(step, 1.0) if whole else step
    return _multiples(low, high, step)


def _multiples(low: float, high: float, step: float) -> list[float]:
    """The multiples of a step from low to high."""
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first
    return [round((first + turn) * step, 10) for turn in range(count + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def marker(number: int, x: float, y: float, size: float = MARKER) -> list[Point]:
    """The outline of the marker of a series: disk, square, diamond, triangle."""
    match number % 4:
        case 0:
            turns = [math.tau * turn / 16 for turn in range(16)]
            return [(x + size * math.cos(turn), y + size * math.sin(turn)) for turn in turns]
        case 1:
            return box(x - 0.9 * size, y - 0.9 * size, x + 0.9 * size, y + 0.9 * size)
        case 2:
            far = 1.25 * size
            return [(x - far, y), (x, y - far), (x + far, y), (x, y + far)]
        case _:
            return [(x - size, y + size), (x, y - 1.1 * size), (x + size, y + size)]


def box(left: float, top: float, right: float, bottom: float) -> list[Point]:
    """The corners of a rectangle."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]

"""The kinds of charts: curves over rounds, ranked clients, values by category, bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sfedhp.report.axes import (
    CHARACTER,
    LEFT,
    MARKER,
    RIGHT,
    WIDTH,
    Scale,
    box,
    grid,
    legend,
    marker,
    round_axis,
    round_scale,
    shortened,
    step_of,
    ticks,
    top_of,
)
from sfedhp.report.drawing import Area, Drawing, Line, Mark, Readout, Rect, Series, Target, Text
from sfedhp.report.styles import series_style


@dataclass(frozen=True)
class Curve:
    """One line: the mean over seeds, round by round."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    deviations: Sequence[float] | None = None  # over seeds; drawn as a band
    number: int = 0  # of its color; the same setting has the same color in all charts


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart."""

    name: str
    value: float
    text: str  # the value in words
    label: str  # the sentence for hover and keyboard
    number: int = 0  # of its color


def line_chart(
    name: str,
    title: str,
    curves: Sequence[Curve],
    *,
    unit: str = "",
    digits: int = 2,
    zero: bool = False,
    log: bool = False,
    note: str = "",
) -> Drawing:
    """Curves over rounds, with bands if there are several seeds.

    Args:
        name: of the drawing.
        title: above it.
        curves: at least one, each with at least one point.
        unit: of the values.
        digits: decimals of the values that a reader gets.
        zero: whether the axis begins at zero.
        log: whether it is logarithmic; the values must then be positive.
        note: below the title.
    """
    named, top = legend([(curve.number, curve.name) for curve in curves], "line")
    bottom = top + 190
    across = round_scale([value for curve in curves for value in curve.x])
    up = _heights(curves, top, bottom, zero=zero, log=log)
    marks: list[Mark] = [*named, *grid(up), *round_axis(across, bottom)]
    for curve in curves:
        spread = curve.deviations
        if spread is not None:
            upper = [
                (across(x), up(min(y + d, up.high))) for x, y, d in zip(curve.x, curve.y, spread, strict=True)
            ]
            lower = [
                (across(x), up(max(y - d, up.low))) for x, y, d in zip(curve.x, curve.y, spread, strict=True)
            ]
            marks.append(Area([[*upper, *reversed(lower)]], series_style("band", curve.number)))
    for curve in curves:
        points = [(across(x), up(y)) for x, y in zip(curve.x, curve.y, strict=True)]
        if len(points) == 1:
            marks.append(Area([marker(0, *points[0])], series_style("fill", curve.number)))
        else:
            marks.append(Line(points, series_style("line", curve.number)))
    turns = sorted({value for curve in curves for value in curve.x})
    readout = Readout(
        [across(turn) for turn in turns],
        [f"round {turn:g}" for turn in turns],
        [_series(curve, turns) for curve in curves],
        top,
        bottom,
        digits,
        unit,
    )
    return Drawing(name, title, WIDTH, bottom + 36, marks, readout, note)


def rank_chart(
    name: str,
    title: str,
    clients: Sequence[str],
    figures: Sequence[Series],
    worst: int,
    *,
    unit: str = "",
    digits: int = 2,
    note: str = "",
) -> Drawing:
    """A bar for each client, in the order given, and a marker for each further series.

    Args:
        name: of the drawing.
        title: above it.
        clients: their names.
        figures: the values of the bars, then those of the markers.
        worst: how many of the first bars are marked as the worst tenth.
        unit: of the values.
        digits: decimals of the values that a reader gets.
        note: below the title.
    """
    named, top = legend(list(enumerate(each.name for each in figures)), "marker")
    top += 16
    bottom = top + 190
    known = [value for each in figures for value in each.values if value is not None]
    high = top_of(known, unit)
    up = Scale(0, high, bottom, top, step=step_of(high, 5))
    across = Scale(0, len(clients), LEFT, WIDTH - RIGHT)
    wide = (WIDTH - RIGHT - LEFT) / max(len(clients), 1)
    gap = 0.15 * wide if wide > 4 else 0.0
    bars = [
        box(across(place) + gap, up(value or 0), across(place + 1) - gap, bottom)
        for place, value in enumerate(figures[0].values)
    ]
    marks: list[Mark] = [*named, *grid(up)]
    marks += [Area(bars[worst:], "bar")] if bars[worst:] else []
    marks += [Area(bars[:worst], "alarm-bar")] if worst else []
    marks += [Line(bar[:2], "alarm-line" if place < worst else "bar-top") for place, bar in enumerate(bars)]
    size = min(MARKER, max(1.2, 0.4 * wide))
    for number, each in enumerate(figures[1:], start=1):
        dots = [
            marker(number, across(place + 0.5), up(value), size)
            for place, value in enumerate(each.values)
            if value is not None
        ]
        marks += [Area(dots, series_style("fill", number))] if dots else []
    if worst:
        end = max(across(worst), LEFT + 3)
        marks += [Line([(LEFT, top - 5), (end, top - 5)], "alarm-line")]
        marks += [Text(LEFT, top - 10, "worst tenth", "alarm-text")]
    marks += [Line([(LEFT, bottom), (WIDTH - RIGHT, bottom)], "axis")]
    marks += [Text((LEFT + WIDTH - RIGHT) / 2, bottom + 20, "clients, worst first", "tick-text", "middle")]
    readout = Readout(
        [across(place + 0.5) for place in range(len(clients))], clients, figures, top, bottom, digits, unit
    )
    return Drawing(name, title, WIDTH, bottom + 28, marks, readout, note)


def category_chart(
    name: str,
    title: str,
    categories: Sequence[str],
    figures: Sequence[Series],
    details: Sequence[str],
    *,
    unit: str = "",
    note: str = "",
) -> Drawing:
    """A line of markers for each category, one marker for each series; `details` are added to its tooltip."""
    named, top = legend(list(enumerate(each.name for each in figures)), "marker")
    step = 21.0
    left = 18 + CHARACTER * min(max(len(each) for each in categories), 18)
    known = [value for each in figures for value in each.values if value is not None]
    across = Scale(0, top_of(known, unit), left, WIDTH - 18)
    bottom = top + step * len(categories) + 4
    marks: list[Mark] = list(named)
    for value in ticks(across.low, across.high, 5):
        marks += [Line([(across(value), top), (across(value), bottom)], "grid")]
        marks += [Text(across(value), bottom + 16, f"{value:g}", "tick-text", "middle")]
    for place, category in enumerate(categories):
        y = top + step * (place + 0.5) + 2
        inner: list[Mark] = [Text(left - 8, y + 4, shortened(category, 18), "text", "end")]
        values = [each.values[place] for each in figures]
        present = [across(value) for value in values if value is not None]
        if len(present) > 1:
            inner.append(Line([(min(present), y), (max(present), y)], "axis"))
        inner += [
            Area([marker(number, across(value), y)], series_style("fill", number))
            for number, value in enumerate(values)
            if value is not None
        ]
        said = [f"{each.name} {_figure(each.values[place], 2, unit)}" for each in figures]
        label = f"{category}: {', '.join([*said, details[place]])}"
        marks.append(Target(inner, label, (0, y - step / 2, WIDTH, step)))
    return Drawing(name, title, WIDTH, bottom + 24, marks, note=note)


def bar_chart(name: str, title: str, bars: Sequence[Bar], *, note: str = "") -> Drawing:
    """Horizontal bars with their values in words."""
    step, top = 34.0, 6.0
    most = max((bar.value for bar in bars), default=0) or 1
    marks: list[Mark] = []
    for place, bar in enumerate(bars):
        y = top + step * place
        length = (WIDTH - 16) * bar.value / most
        inner: list[Mark] = [
            Text(8, y + 12, shortened(bar.name, 34), "text"),
            Text(WIDTH - 8, y + 12, bar.text, "strong-text", "end"),
            Rect(8, y + 18, WIDTH - 16, 8, "track", 2),
            Rect(8, y + 18, max(length, 1), 8, series_style("fill", bar.number), 2),
        ]
        marks.append(Target(inner, bar.label, (0, y, WIDTH, step)))
    return Drawing(name, title, WIDTH, top + step * len(bars) + 2, marks, note=note)


def _series(curve: Curve, turns: Sequence[float]) -> Series:
    """The values of a curve at all rounds of a chart; None if it has none."""
    values = dict(zip(curve.x, curve.y, strict=True))
    spread = None if curve.deviations is None else dict(zip(curve.x, curve.deviations, strict=True))
    return Series(
        curve.name,
        [values.get(turn) for turn in turns],
        None if spread is None else [spread.get(turn, 0.0) for turn in turns],
        series_style("fill", curve.number),
    )


def _figure(value: float | None, digits: int, unit: str) -> str:
    return "–" if value is None else f"{value:.{digits}f}{f' {unit}' if unit else ''}"


def _heights(curves: Sequence[Curve], top: float, bottom: float, *, zero: bool, log: bool) -> Scale:
    values = []
    for curve in curves:
        spread = curve.deviations or [0.0] * len(curve.y)
        values += [y + d for y, d in zip(curve.y, spread, strict=True)]
        values += [y - d for y, d in zip(curve.y, spread, strict=True) if not log or y > d]
    low, high = min(values), max(values)
    if log:
        return Scale(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)), bottom, top, True)
    low = 0.0 if zero else low
    if low == high:
        low, high = (0.0, high or 1.0) if low >= 0 else (low, 0.0)
    step = step_of(high - low, 5)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(low, high, bottom, top, step=step)

"""Charts as lists of simple marks: lines, areas, rectangles, dots and text; and these as SVG.

The same marks become PNG in `raster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from sfedhp.report.styles import file_css

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Line:
    """A line through a list of points, in pixels."""

    points: Sequence[Point]
    style: str


@dataclass(frozen=True)
class Area:
    """A filled polygon, or several: one for each list of points."""

    polygons: Sequence[Sequence[Point]]
    style: str


@dataclass(frozen=True)
class Rect:
    """A rectangle of a chart, in pixels from its top left corner."""

    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 0.0


@dataclass(frozen=True)
class Text:
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    style: str = "text"
    anchor: Anchor = "start"


@dataclass(frozen=True)
class Target:
    """A group of marks with a tooltip, which a reader opens by hover or keyboard.

    `box` is where the pointer finds them: x, y, width, height.
    """

    marks: Sequence[Mark]
    label: str
    box: tuple[float, float, float, float]
    data: Mapping[str, str] = field(default_factory=dict)  # attributes data-…


Mark = Line | Area | Rect | Text | Target


@dataclass(frozen=True)
class Series:
    """Numbers of a chart that a reader gets by hover or keyboard: one for each place on the x axis."""

    name: str
    values: Sequence[float | None]
    deviations: Sequence[float] | None = None  # standard deviations over seeds
    style: str = ""


@dataclass(frozen=True)
class Readout:
    """What a chart says at each place of its x axis."""

    places: Sequence[float]  # x in the drawing
    titles: Sequence[str]  # what is at each place
    series: Sequence[Series]
    top: float
    bottom: float
    digits: int = 2
    unit: str = ""


@dataclass(frozen=True)
class Drawing:
    """A chart as shapes and texts, for a page or a separate file."""

    name: str  # of its file, and its id in a page
    title: str
    width: float
    height: float
    marks: Sequence[Mark]
    readout: Readout | None = None
    note: str = ""  # a note for the reader


def svg(drawing: Drawing, *, prefix: str = "", style: str = "") -> str:
    """The SVG element of a drawing in a page, whose style sheet has the styles.

    Args:
        drawing: the chart.
        prefix: before its name, where a page has several of that name.
        style: a further class of the element.
    """
    name = f"{prefix}{drawing.name}"
    # Without a tabindex, browsers would stop at the chart itself because its script listens to the focus.
    interactive = ' tabindex="0" data-readout' if drawing.readout else ' tabindex="-1"'
    classes = f"chart {style}".strip()
    role = "group" if any(isinstance(mark, Target) for mark in drawing.marks) else "img"
    return (
        f'<svg id="{name}" class="{classes}" role="{role}" '
        f'viewBox="0 0 {drawing.width:g} {drawing.height:g}" '
        f'aria-label="{escape(drawing.title)}"{interactive}>{_marks(drawing.marks)}</svg>'
    )


def svg_file(drawing: Drawing) -> str:
    """A drawing as a separate SVG file, with its title above."""
    head = 30
    width, height = drawing.width, drawing.height + head
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 -{head} {width:g} {height:g}">'
        f"<title>{escape(drawing.title)}</title><style>{file_css()}</style>"
        f'<rect class="paper" x="0" y="-{head}" width="100%" height="100%" style="fill:var(--ground)"/>'
        f'<text class="strong-text" x="8" y="-10">{escape(drawing.title)}</text>'
        f"{_marks(drawing.marks)}</svg>\n"
    )


def _marks(marks: Iterable[Mark]) -> str:
    return "".join(_mark(mark) for mark in marks)


def _mark(mark: Mark) -> str:
    match mark:
        case Line(points, style):
            return f'<path class="{style}" d="M{_path(points)}"/>'
        case Area(polygons, style):
            outline = "".join(f"M{_path(points)}Z" for points in polygons)
            return f'<path class="{style}" d="{outline}"/>'
        case Rect(x, y, width, height, style, radius):
            corner = f' rx="{radius:g}"' if radius else ""
            return (
                f'<rect class="{style}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
                f"{corner}/>"
            )
        case Text(x, y, text, style, anchor):
            place = "" if anchor == "start" else f' text-anchor="{anchor}"'
            return f'<text class="{style}" x="{_n(x)}" y="{_n(y)}"{place}>{escape(text)}</text>'
        case Target(inner, label, (x, y, width, height), data):
            attributes = "".join(f' data-{name}="{escape(value)}"' for name, value in data.items())
            return (
                f'<g class="target" role="img" tabindex="-1" aria-label="{escape(label)}"{attributes}>'
                f"{_marks(inner)}"
                f'<rect class="hit" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"/></g>'
            )


def _path(points: Sequence[Point]) -> str:
    return "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _n(value: float) -> str:
    """A coordinate with one decimal, which is enough for screens."""
    return f"{value:.1f}".removesuffix(".0")

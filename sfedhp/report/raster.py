"""Charts as PNG files, drawn from the same marks as the SVG by matplotlib (the extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from sfedhp.core.errors import InputError
from sfedhp.report.drawing import Area, Drawing, Line, Mark, Rect, Target, Text
from sfedhp.report.styles import LIGHT, STYLES, Style

_SCALE = 2  # pixels for each unit of a drawing
_POINTS = 72 / 100  # a unit in points, at 100 units an inch
_HEAD = 30  # room for the title


def png_file(drawing: Drawing) -> bytes:
    """A drawing as a PNG file, with its title above.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("PNG files need matplotlib: pip install 'sfedhp[report]', or use --svg.") from None

    width, height = drawing.width, drawing.height + _HEAD
    figure = Figure(figsize=(width / 100, height / 100), dpi=100 * _SCALE, facecolor=LIGHT["ground"])
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(drawing.height, -_HEAD))
    axes.set_axis_off()
    _draw(axes, [Text(8, -10, drawing.title, "strong-text"), *drawing.marks])
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _draw(axes: Any, marks: Iterable[Mark]) -> None:
    from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle

    for mark in marks:
        if isinstance(mark, Target):
            _draw(axes, mark.marks)
            continue
        style = STYLES[mark.style]
        match mark:
            case Line(points, _):
                across, down = zip(*points, strict=True)
                axes.plot(across, down, **_stroke(style))
            case Area(polygons, _):
                for points in polygons:
                    axes.add_patch(Polygon(points, closed=True, **_fill(style)))
            case Rect(x, y, width, height, _, radius):
                if min(width, height) <= 2 * radius:
                    axes.add_patch(Rectangle((x, y), width, height, **_fill(style)))
                else:
                    inner = (x + radius, y + radius)
                    size = (width - 2 * radius, height - 2 * radius)
                    box = f"round,pad={radius},rounding_size={radius}"
                    axes.add_patch(FancyBboxPatch(inner, *size, boxstyle=box, **_fill(style)))
            case Text(x, y, text, _, anchor):
                place = {"start": "left", "middle": "center", "end": "right"}[anchor]
                weight = "bold" if style.bold else "normal"
                axes.text(
                    *(x, y, text.replace("$", r"\$")),
                    color=LIGHT[style.fill or "ink"],
                    fontsize=style.size * _POINTS,
                    fontweight=weight,
                    ha=place,
                    va="baseline",
                )


def _stroke(style: Style) -> dict[str, Any]:
    width = style.width * _POINTS
    dashes = (0, [part / style.width for part in style.dash]) if style.dash else "-"
    return {"color": LIGHT[style.stroke or "ink"], "linewidth": width, "linestyle": dashes}


def _fill(style: Style) -> dict[str, Any]:
    return {
        "facecolor": LIGHT[style.fill] if style.fill else "none",
        "edgecolor": LIGHT[style.stroke] if style.stroke else "none",
        "linewidth": style.width * _POINTS if style.stroke else 0,
        "alpha": style.opacity if style.opacity < 1 else None,
    }

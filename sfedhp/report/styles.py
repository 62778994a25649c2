"""Colors and line styles of the charts: one definition for pages, SVG files and PNG files.

The colors of series are those of Okabe and Ito, which color-blind people can distinguish, darker on a light
and lighter on a dark background. Each series also has its own dash pattern, so that no chart depends on
color.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Palette = dict[str, str]

LIGHT: Final[Palette] = {
    "ground": "#ffffff",
    "panel": "#f5f7f9",
    "line": "#d4dae0",
    "ink": "#1b2530",
    "soft": "#54606c",
    "accent": "#0b62a4",
    "alarm": "#b3420a",
    "c0": "#0067a8",
    "c1": "#c24f00",
    "c2": "#00795a",
    "c3": "#a8447e",
    "c4": "#7a6a00",
    "c5": "#1d87c4",
    "c6": "#5b4bb5",
    "c7": "#55606b",
}
DARK: Final[Palette] = {
    "ground": "#12171d",
    "panel": "#1b222a",
    "line": "#3a4652",
    "ink": "#e8edf2",
    "soft": "#a9b5c1",
    "accent": "#7cc0f5",
    "alarm": "#ff9d5c",
    "c0": "#5fb4ee",
    "c1": "#f09a4a",
    "c2": "#3cc79f",
    "c3": "#e08fc0",
    "c4": "#e0cf4f",
    "c5": "#a5d8f7",
    "c6": "#b0a4f5",
    "c7": "#b5c0ca",
}
COLORS: Final = 8  # of series
SERIES: Final = 4 * COLORS  # series that differ in color or dashes
_DASHES: Final = ((), (7, 3), (2, 2.5), (9, 3, 2, 3), (4, 2), (12, 4), (1, 3), (6, 2, 1, 2, 1, 2))
FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Style:
    """How a mark is drawn; colors are names of the palette."""

    stroke: str | None = None
    fill: str | None = None
    width: float = 1.0
    dash: tuple[float, ...] = ()
    opacity: float = 1.0  # of the fill
    size: float = 12.0  # of text
    bold: bool = False


def _color(number: int) -> str:
    return f"c{number % COLORS}"


def _dash(number: int) -> tuple[float, ...]:
    """The dashes of a series: with each turn of the colors, every color gets another pattern."""
    return _DASHES[(number + 3 * (number // COLORS)) % COLORS]


STYLES: Final[dict[str, Style]] = {
    "grid": Style(stroke="line"),
    "axis": Style(stroke="soft"),
    "link": Style(stroke="soft", width=1.5),
    "thin-link": Style(stroke="soft", width=1.5, dash=(3, 3)),
    "node": Style(stroke="soft", fill="panel"),
    "cell": Style(stroke="line", fill="panel"),
    "worst-cell": Style(stroke="alarm", fill="panel", width=2),
    "mix": Style(fill="soft"),
    "track": Style(fill="line"),
    "tick-text": Style(fill="soft", size=12),
    "small-text": Style(fill="soft", size=10.5),
    "text": Style(fill="ink", size=12),
    "strong-text": Style(fill="ink", size=12.5, bold=True),
    "alarm-text": Style(fill="alarm", size=12, bold=True),
    "alarm-fill": Style(fill="alarm"),
    "alarm-line": Style(stroke="alarm", width=1.5),
    "alarm-bar": Style(fill="alarm", opacity=0.38),
    "bar": Style(fill="c0", opacity=0.3),
    "bar-top": Style(stroke="c0", width=2),
    "hit": Style(),  # an invisible place for the pointer
    **{f"line{each}": Style(stroke=_color(each), width=2, dash=_dash(each)) for each in range(SERIES)},
    **{f"fill{each}": Style(fill=_color(each)) for each in range(SERIES)},
    **{f"band{each}": Style(fill=_color(each), opacity=0.16) for each in range(SERIES)},
}


def series_style(kind: str, number: int) -> str:
    """The name of the style of a series: `line`, `fill` or `band`; colors repeat, with other dashes."""
    return f"{kind}{number % SERIES}"


def palette_css() -> str:
    """The palettes as CSS variables: dark where the reader's system is, or as the page's button says."""
    light, dark = _variables(LIGHT), _variables(DARK)
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
    )


def chart_css() -> str:
    """The styles as CSS classes; colors are the variables of `palette_css`."""
    rules = [f"svg .{name}{{{_declarations(style)}}}" for name, style in STYLES.items()]
    return "\n".join([*rules, "svg .hit{pointer-events:all}"]) + "\n"


def file_css() -> str:
    """The CSS of a separate SVG file: light, or dark if the reader's system is dark."""
    return f"svg{{font-family:{FONT};background:var(--ground)}}\n{palette_css()}{chart_css()}"


def _variables(palette: Palette) -> str:
    return "".join(f"--{name}:{color};" for name, color in palette.items())


def _declarations(style: Style) -> str:
    parts = [f"fill:{f'var(--{style.fill})' if style.fill else 'none'}"]
    if style.stroke:
        parts += [f"stroke:var(--{style.stroke})", f"stroke-width:{style.width:g}"]
    if style.dash:
        parts.append(f"stroke-dasharray:{' '.join(f'{part:g}' for part in style.dash)}")
    if style.opacity < 1:
        parts.append(f"fill-opacity:{style.opacity:g}")
    parts.append(f"font-size:{style.size:g}px")
    if style.bold:
        parts.append("font-weight:600")
    return ";".join(parts)

"""Pictures for the front of the page: the cell map, curves of the tables, and one for each surprise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from sfedhp.paper.curves import Curve
from sfedhp.paper.figures import canvas, to_svg
from sfedhp.paper.published import (
    METHOD_NAMES,
    PAPER_KINDS,
    TABLES,
    cells,
    in_words,
    overview,
    place_of,
    row_name,
    variant_name,
)
from sfedhp.paper.rows import Row, table1_rows
from sfedhp.paper.studies import MAIN_READING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAR: Final = 5.0  # points from the paper at which the color of the cell map ends
_COLORS: Final = {
    "sfedhp": "#c2410c",
    "pfedme": "#1d4ed8",
    "hierfavg": "#0f766e",
    "fedavg": "#6b7280",
    "fedprox": "#a16207",
}
_MAIN, _OTHER = "#c2410c", "#94a3b8"  # of the two readings


def cell_map(rows: Sequence[Row], reading: str = MAIN_READING) -> str:
    """Ours − paper of every cell as a heat map; white where a cell was not run or the paper has none."""
    names = dict.fromkeys((cell.method, cell.lam, cell.alpha) for cell in cells())
    columns = [(table, kind) for table in TABLES for kind in PAPER_KINDS]
    with canvas("cell-map"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11.5, 6.2), layout="constrained")
        axes = figure.add_subplot()
        for y, (method, lam, alpha) in enumerate(names):
            for x, (table, kind) in enumerate(columns):
                known = [
                    cell
                    for cell in cells()
                    if (cell.dataset, cell.setting, cell.method, cell.lam, cell.alpha)
                    == (*TABLES[table], method, lam, alpha)
                ]
                if known and getattr(known[0], kind) is not None:
                    same = [
                        row
                        for row in rows
                        if row.paper is not None
                        and (row.table, row.kind, row.reading, row.method) == (table, kind, reading, method)
                        and lam in (None, row.lam)
                        and alpha in (None, row.alpha)
                    ]
                    _draw_cell(axes, x, y, same[0].gap if same else None)
        axes.set(xlim=(0, len(columns)), ylim=(len(names), 0))
        axes.set_xticks(
            [x + 0.5 for x in range(len(columns))],
            [f"{place_of(table)}\n{kind.upper()}" for table, kind in columns],
            fontsize=7.5,
        )
        axes.set_yticks([y + 0.5 for y in range(len(names))], [row_name(*name) for name in names], fontsize=8)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.axvline(8, color="#1f2937", lw=1)
        figure.supxlabel(
            f"ours − paper in points, best round, {reading}; hatched: not run yet",
            fontsize=8,
            color="#475569",
        )
        return to_svg(figure)


def _draw_cell(axes: Axes, x: int, y: int, gap: float | None) -> None:
    from matplotlib.patches import Rectangle

    look: dict[str, Any] = {"facecolor": "white", "hatch": "////", "edgecolor": "#cbd5e1", "lw": 0.5}
    if gap is not None:
        look = {"facecolor": _shade(gap), "edgecolor": "white", "lw": 1.5}
        dark = abs(gap) > 0.7 * _FAR
        axes.text(
            x + 0.5,
            y + 0.55,
            f"{gap:+z.1f}",
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if dark else "#1f2937",
        )
    axes.add_patch(Rectangle((x, y), 1, 1, **look))


def _shade(gap: float) -> tuple[float, float, float]:
    """Pale green at the paper's number, blue below it, orange above."""
    size = min(abs(gap) / _FAR, 1.0)
    near, far = (0.90, 0.96, 0.90), (0.76, 0.25, 0.05) if gap > 0 else (0.11, 0.31, 0.85)
    red, green, blue = (low + size * (high - low) for low, high in zip(near, far, strict=True))
    return red, green, blue


def table_curves(curves: Mapping[str, Sequence[Curve]], reading: str = MAIN_READING) -> str:
    """Small multiples: the GM of Table 1's methods round by round, with the paper's numbers at the right."""
    with canvas("table-curves"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11.5, 6), layout="constrained")
        lines: dict[str, Any] = {}
        for place, table in enumerate(TABLES):
            axes = figure.add_subplot(2, 3, place + 1)
            axes.set_title(place_of(table), fontsize=9)
            shown = {
                cell.method: cell for cell in overview() if (cell.dataset, cell.setting) == TABLES[table]
            }
            for method, cell in shown.items():
                name = variant_name(method, cell.lam)
                curve = next((each for each in curves.get(table, ()) if each.variant == name), None)
                if curve is not None and "gm" in curve.columns:
                    (lines[method],) = axes.plot(
                        curve.columns["round"], curve.columns["gm"], color=_COLORS[method], lw=1.3
                    )
                    axes.plot([815], [cell.gm], "<", color=_COLORS[method], ms=5, clip_on=False)
            if not axes.lines:
                axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", color="#94a3b8")
            best = max(cell.gm for cell in shown.values())
            axes.set(
                xlim=(0, 815), ylim=(min(best - 22, min(cell.gm for cell in shown.values()) - 4), best + 4)
            )
            _plain(axes, "both")
        handles = [lines[method] for method in _COLORS if method in lines]
        names = [METHOD_NAMES[method] for method in _COLORS if method in lines]
        words = f"GM in % against the cloud round, {reading}; ◂ the paper's number"
        figure.legend(
            handles, names, title=words, loc="outside lower center", ncols=5, fontsize=8, frameon=False
        )
        return to_svg(figure)


def balanced_edges(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Ours − paper of sFedHP's global model, under both readings."""
    with canvas("balanced-edges"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for x, rows in enumerate(pairs):
            gaps = [row.gap or 0.0 for row in rows]
            axes.plot([x, x], gaps, color="#e2e8f0", lw=2, zorder=1)
            for row, gap, color in zip(rows, gaps, (_MAIN, _OTHER), strict=True):
                axes.scatter([x], [gap], color=color, s=28, zorder=2, label=row.reading if not x else None)
        axes.axhline(0, color="#1f2937", lw=0.8)
        axes.axhspan(-1, 1, color="#16a34a", alpha=0.08, lw=0)
        labels = [f"{place_of(row.table)}\nλ={row.lam:g}" for row, _ in pairs]
        axes.set_xticks(range(len(pairs)), labels, fontsize=6.5, rotation=90)
        axes.set_ylabel("GM, ours − paper, points")
        axes.legend(fontsize=8)
        _plain(axes)
        return to_svg(figure)


def norm_statistics(rows: Sequence[Row], reading: str) -> str:
    """The same global models with local and with averaged batch-norm statistics."""
    local = [row for row in table1_rows(rows, reading) if row.statistics == "local"]
    averaged = {
        (row.table, row.variant): row
        for row in rows
        if row.reading == reading and row.statistics == "averaged" and row.kind == "gm"
    }
    with canvas("norm-statistics"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for x, row in enumerate(local):
            other = averaged[(row.table, row.variant)]
            for shift, each, color in ((-0.2, row, _MAIN), (0.2, other, _OTHER)):
                label = each.statistics if not x else None
                axes.bar(x + shift, each.ours_tail, 0.38, yerr=each.ci, color=color, label=label, capsize=2)
        labels = [f"{place_of(row.table)[-2:]} {in_words(row.variant)}" for row in local]
        axes.set_xticks(range(len(local)), labels, fontsize=7, rotation=30, ha="right")
        axes.set_ylabel("GM on CIFAR-10, %")
        axes.legend(fontsize=8)
        _plain(axes)
        return to_svg(figure)


def even_steps(curves: Sequence[Curve]) -> str:
    """The accuracy against the number of steps on a mini-batch."""
    with canvas("even-k"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for curve in curves:
            steps, ends = int(curve.strength), list(curve.tails("gm").values())
            color = _MAIN if steps % 2 == 0 else _OTHER
            axes.bar(steps, statistics.fmean(ends), 0.7, color=color)
            axes.scatter([steps] * len(ends), ends, color="#1f2937", s=8, zorder=2)
        axes.set_xticks([int(curve.strength) for curve in curves])
        axes.set(xlabel="K, gradient steps on a mini-batch; ηλ = 1", ylabel="GM, %")
        _plain(axes)
        return to_svg(figure)


def _plain(axes: Axes, lines: Literal["both", "x", "y"] = "y") -> None:
    """A faint grid, and no frame."""
    axes.grid(axis=lines, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)

"""The paper's figures as SVG, drawn with matplotlib (the extra `report`)."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from sfedhp.core.errors import InputError
from sfedhp.paper.curves import Curve
from sfedhp.paper.published import in_words
from sfedhp.paper.studies import MAIN_READING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Panel(NamedTuple):
    """One set of axes of a figure: what is plotted against what."""

    column: str
    label: str
    against: str = "round"  # or "formula": bytes
    log: bool = False


_ACCURACY = Panel("gm", "GM, %")
_LOSS = Panel("train_loss", "training loss of w", log=True)
_DENSITY = Panel("density_global", "density of w")
PANELS: Final = {
    "fig2": (_ACCURACY, _LOSS),
    "fig3": (_ACCURACY, _DENSITY, Panel("gm", "GM, %", "formula")),
    "fig4": (_ACCURACY, _LOSS),
    "fig5": (_ACCURACY, _DENSITY),
    "speedup": (_ACCURACY,),
}
TITLES: Final = {
    "fig2": "Figure 2: strongly convex (MLR with weight decay), MNIST",
    "fig3": "Figure 3: accuracy, density and communication, MNIST",
    "fig4": "Figure 4: the effect of λ",
    "fig5": "Figure 5: the effect of γ",
    "speedup": "How many edges count: S of 4",
}
_AXES: Final = {
    "round": "cloud round",
    "formula": "MB of one edge (or client) so far, the paper's count",
}
NEEDS_MATPLOTLIB: Final = "Drawing needs matplotlib: pip install 'sfedhp[report]'."
_LINE = 5  # curves that fit into a legend of one line
_DASHES = ("-", "--", ":", "-.")


def title(study: str) -> str:
    """The title of a study's figure; another reading than the main one has its name after a hyphen."""
    figure, _, reading = study.partition("-")
    return f"{TITLES[figure]}, {reading or MAIN_READING}"


def draw(study: str, curves: Sequence[Curve]) -> str:
    """The figure of a study as SVG; the same records give the same text.

    Raises:
        InputError: matplotlib is not installed.
    """
    panels = PANELS[study.partition("-")[0]]
    families = list(dict.fromkeys(curve.family for curve in curves))
    with canvas(study):
        from matplotlib.figure import Figure

        columns = len(families) if len(curves) > _LINE else len(curves)
        lines = math.ceil(len(curves) / columns)
        figure = Figure(figsize=(4.6 * len(panels), 3.8 + 0.16 * lines), layout="constrained")
        colors = [f"C{turn}" for turn in range(10)]
        names = list(dict.fromkeys(curve.variant.split(" ")[0] for curve in curves))
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), place + 1)
            for curve in curves:
                if panel.column not in curve.columns or panel.against not in curve.columns:
                    continue
                across = curve.columns[panel.against]
                across = [value / 1e6 for value in across] if panel.against == "formula" else across
                # One color per method or value, one dash pattern per family of variants.
                color = colors[names.index(curve.variant.split(" ")[0]) % len(colors)]
                dashes = _DASHES[families.index(curve.family) % len(_DASHES)]
                means = curve.columns[panel.column]
                axes.plot(across, means, dashes, color=color, label=in_words(curve.variant), lw=1.3)
                if len(curves) <= _LINE and len(curve.runs) > 1:
                    low, high = zip(*_band(curve, panel.column), strict=True)
                    axes.fill_between(across, low, high, color=color, alpha=0.15, lw=0)
            axes.set(xlabel=_AXES[panel.against], ylabel=panel.label)
            if panel.log:
                axes.set_yscale("log")
            if panel.against == "formula":
                axes.set_xscale("log")
            axes.grid(alpha=0.3)
        # Below the panels, where it covers no curve; one column per family of variants.
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", fontsize=7, ncols=columns)
        return to_svg(figure)


def can_draw() -> bool:
    """Whether figures can be drawn: whether matplotlib is installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    return bool(mpl)


@contextmanager
def canvas(name: str) -> Iterator[None]:
    """The style of all drawings; the same data give the same SVG.

    Raises:
        InputError: matplotlib is not installed.
    """
    if not can_draw():
        raise InputError(NEEDS_MATPLOTLIB)
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9}):
        yield


def to_svg(figure: Figure) -> str:
    """A drawing as SVG; to be called on its canvas."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _band(curve: Curve, column: str) -> Iterator[tuple[float, float]]:
    """The mean minus and plus one standard deviation over seeds, round by round."""
    for turn, mean in enumerate(curve.columns[column]):
        spread = statistics.stdev(run[column][turn] for run in curve.runs.values())
        yield mean - spread, mean + spread

"""Three surprising results of the reproduction: a sentence from the records and a picture each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sfedhp.paper.pictures import balanced_edges, even_steps, norm_statistics
from sfedhp.paper.results import Results
from sfedhp.paper.rows import Row, table1_rows
from sfedhp.paper.studies import MAIN_READING, OTHER_READING


@dataclass(frozen=True)
class Surprise:
    """A setting that the paper does not state and that determines its numbers."""

    title: str
    text: str
    picture: str  # the name of its file
    drawing: str  # SVG; empty where nothing was run yet


def surprises(results: Results, *, drawn: bool = True) -> list[Surprise]:
    """The three, by the records; with or without their pictures."""
    return [
        _balanced_edges(results.rows, drawn),
        _norm_statistics(results.rows, drawn),
        _even_steps(results, drawn),
    ]


def _balanced_edges(rows: Sequence[Row], drawn: bool) -> Surprise:
    other = {(row.table, row.variant): row for row in _global(rows, OTHER_READING)}
    pairs = [
        (row, other[row.table, row.variant])
        for row in _global(rows, MAIN_READING)
        if (row.table, row.variant) in other and row.method == "sfedhp"
    ]
    text = (
        "The paper does not say which labels the clients of an edge have. If the five clients of an edge "
        "hold all ten labels, sFedHP's accuracy is close to the paper's"
    )
    if not pairs:
        return Surprise("Edges that hold all labels", f"{text} (not run yet).", "balanced-edges", "")
    sizes = [statistics.fmean(abs(rows[place].gap or 0.0) for rows in pairs) for place in (0, 1)]
    text += (
        f": over the {len(pairs)} cells that were run both ways, sFedHP's GM is {sizes[0]:.2f} points from "
        f"the paper's on average, and {sizes[1]:.2f} points if an edge holds neighbouring labels (best "
        "round)."
    )
    return Surprise(
        "Edges that hold all labels", text, "balanced-edges", balanced_edges(pairs) if drawn else ""
    )


def _global(rows: Sequence[Row], reading: str) -> list[Row]:
    """The global models of a reading that the paper has."""
    return [row for row in rows if (row.kind, row.reading) == ("gm", reading) and row.paper is not None]


def _norm_statistics(rows: Sequence[Row], drawn: bool) -> Surprise:
    title = "Batch-norm statistics decide CIFAR-10"
    text = (
        "The same weights of a global model are evaluated twice: with each client's own batch-norm "
        "statistics (local), and with the mean of all clients' (averaged). Only the second is a single model "
        "that could be deployed. "
    )
    for reading in (MAIN_READING, OTHER_READING):
        local = [row for row in table1_rows(rows, reading) if row.statistics == "local"]
        averaged = [
            row
            for row in rows
            if (row.reading, row.statistics, row.kind) == (reading, "averaged", "gm")
            and any((row.table, row.variant) == (each.table, each.variant) for each in local)
        ]
        if local:
            ranges = [_range([row.ours_tail for row in some]) for some in (local, averaged)]
            text += (
                f"The rows of Table 1 that were run ({reading}) have {ranges[0]} with local statistics and "
                f"{ranges[1]} with averaged ones."
            )
            return Surprise(title, text, "norm-statistics", norm_statistics(rows, reading) if drawn else "")
    return Surprise(title, text + "Not run yet.", "norm-statistics", "")


def _even_steps(results: Results, drawn: bool) -> Surprise:
    title = "An even K breaks training"
    text = (
        "With ηλ = 1, as at the paper's λ = 20, training collapses if the number K of gradient steps on a "
        "mini-batch is even, and works if it is odd. The paper has K = 5 everywhere. docs/theory.md explains "
        "why. Accuracy on the embedded images after 60 rounds"
    )
    curves = results.curves.get("even-k", ())
    if not curves:
        return Surprise(title, f"{text} (not run yet).", "even-k", "")
    means = {int(curve.strength): statistics.fmean(curve.tails("gm").values()) for curve in curves}
    even, odd = ([end for steps, end in means.items() if steps % 2 == rest] for rest in (0, 1))
    text += f": {_range(even)} with an even K up to {max(means)}, {_range(odd)} with an odd one."
    return Surprise(title, text, "even-k", even_steps(curves) if drawn else "")


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"

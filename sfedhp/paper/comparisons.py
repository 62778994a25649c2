"""The comparisons of curves that claims about figures are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sfedhp.paper.curves import Curve
from sfedhp.paper.published import METHOD_NAMES
from sfedhp.paper.verdicts import Cell, compare

Figures = Mapping[str, Sequence[Curve]]  # by table or figure
COUNTS = "GM, mean of the last five evaluations"
SUMMARY = (  # the paper's sentence on accuracy, speed and bytes
    "In summary, sFedHP performs better that pFedMe and hierarchical FedAvg in test accuracy, convergence "
    "rate, and communication cost in μ-strongly convex and nonconvex situations."
)
NEAR = 0.5  # points below an accuracy at which it counts as reached


def find(figures: Figures, figure: str, variant: str) -> Curve | None:
    """The curve of a variant; None if it was not run."""
    return next((curve for curve in figures.get(figure, ()) if curve.variant == variant and curve.runs), None)


def families(figures: Figures, figure: str) -> Iterator[list[Curve]]:
    """The curves of a figure by family, each along its λ or γ."""
    curves = figures.get(figure, ())
    for family in dict.fromkeys(curve.family for curve in curves):
        yield sorted((curve for curve in curves if curve.family == family), key=lambda curve: curve.strength)


def more_accurate(figures: Figures, figure: str, left: str, right: str, margin: float = 0.0) -> Cell:
    """That one curve's GM is above another's."""
    curves = [find(figures, figure, name) for name in (left, right)]
    about = [
        words(name) if curve is None else f"{words(name)} {mean(curve.tails('gm')):.2f}"
        for name, curve in zip((left, right), curves, strict=True)
    ]
    tails = [None if curve is None else curve.tails("gm") for curve in curves]
    return compare(f"{about[0]} − {about[1]}", tails[0], tails[1], margin)


def lower_ends(*curves: Curve) -> dict[int, float]:
    """By seed, half a point below the lowest of some GMs; of the seeds that all have."""
    ends = [curve.tails("gm") for curve in curves]
    common = [seed for seed in (ends[0] if ends else ()) if all(seed in each for each in ends)]
    return {seed: min(each[seed] for each in ends) - NEAR for seed in common}


def saved(ours: Curve, rival: Curve, column: str) -> dict[int, float]:
    """By how many percent less of a column ours ends with, by seed."""
    theirs = rival.ends(column)
    return {seed: 100 * (1 - end / theirs[seed]) for seed, end in ours.ends(column).items() if seed in theirs}


def words(variant: str) -> str:
    """The name of a variant in a sentence: "sparse sFedHP" of "sfedhp sparse"."""
    method, _, rest = variant.partition(" ")
    return " ".join(filter(None, (rest, METHOD_NAMES.get(method, method))))


def zeros(values: Mapping[int, float] | None) -> dict[int, float] | None:
    """A zero for each seed, to compare values with that are differences already; None of None."""
    return None if values is None else dict.fromkeys(values, 0.0)


def mean(values: Mapping[int, float] | None) -> float:
    """The mean over seeds; 0 of none."""
    return sum(values.values()) / len(values) if values else 0.0

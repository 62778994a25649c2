"""A claim of the paper: the differences it is about, and the verdict that tests over the seeds give.

Every claim is a list of cells, each of which says "this difference is above this margin". A cell is

- **true** or **false** if the difference is significantly above or below the margin: a paired t-test over
  seeds, with Holm's correction over the cells of the claim, those not run yet too;
- **level** if it is neither, and the 95 % interval lies within a bound that is named;
- **not decided** otherwise.

A claim holds if all its cells are true, and does not hold if one is false.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sfedhp.paper.significance import LEVEL, Difference, difference, format_p, holm

Outcome = Literal["true", "false", "level", "not decided", "not run yet"]
Verdict = Literal["holds", "holds partly", "does not hold", "not decided", "not run yet"]

OURS: Final = "Not the paper's"  # how the statement of a claim begins that we added to its own
BOUND: Final = 0.5  # points within which two accuracies are level
RULE: Final = (
    f"A comparison is true or false if a paired t-test over seeds says so (p < {LEVEL} after Holm's "
    "correction over all comparisons of the claim, those not run yet too). It is level if neither, and the "
    f"95 % interval of the difference lies within ±{BOUND} points. Otherwise it is not decided. A claim "
    "holds if all its comparisons are true, and does not hold if one is false. It holds partly if the others "
    "are level. Otherwise it is not decided."
)


@dataclass(frozen=True)
class Cell:
    """One comparison that a claim is about: that a difference is above a margin."""

    about: str
    difference: Difference | None = None  # None: not run yet
    margin: float = 0.0
    unit: str = "points"
    bound: float | None = None  # within ± this much is level; None: nothing is
    outcome: Outcome = "not run yet"
    p: float | None = None  # corrected

    def line(self) -> str:
        """The comparison in words, with its numbers."""
        if self.difference is None:
            return f"{self.about}: {self.outcome}"
        half = "one seed" if self.difference.half is None else f"± {self.difference.half:.2f}"
        p = "" if self.p is None else f", {format_p(self.p)}"
        goal = f", must be above {self.margin:g}" if self.margin else ""
        return f"{self.about}: {self.difference.mean:+.2f} {half} {self.unit}{goal} ({self.outcome}{p})"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what our runs say about it."""

    title: str
    statement: str  # the paper's sentence, or ours
    rule: str  # which figures are compared
    places: tuple[str, ...]  # the tables and figures that have them
    cells: tuple[Cell, ...]  # the comparisons, with their outcomes
    verdict: Verdict
    number: str  # what to remember
    findings: tuple[str, ...] = ()  # more lines

    @property
    def name(self) -> str:
        """The title, and whether the paper does not claim it."""
        return f"{self.title} (not the paper's)" if self.statement.startswith(OURS) else self.title


def compare(
    about: str,
    left: Mapping[int, float] | None,
    right: Mapping[int, float] | None,
    margin: float = 0.0,
    unit: str = "points",
) -> Cell:
    """That `left` is above `right` by more than a margin, seed by seed; None was not run."""
    found = None if left is None or right is None else difference(left, right, margin)
    return Cell(about, found, margin, unit, BOUND if unit == "points" and not margin else None)


def judge_cells(
    title: str,
    statement: str,
    rule: str,
    places: Sequence[str],
    cells: Sequence[Cell],
    number: str = "",
    findings: Sequence[str] = (),
) -> Claim:
    """The claim that all these cells are true."""
    decided = tuple(_decide(cells))
    counts = Counter(cell.outcome for cell in decided)
    if not number:
        number = f"true in {counts['true']} of {len(decided) - counts['not run yet']}"
        gaps = [cell.difference.mean for cell in decided if cell.difference is not None]
        if gaps:
            number += f"; {min(gaps):+.1f} to {max(gaps):+.1f} {decided[0].unit}"
    if counts["not run yet"]:
        known = counts["not run yet"] < len(decided)
        number = f"{f'{number}; ' if known else ''}{counts['not run yet']} of {len(decided)} not run yet"
    return Claim(
        title,
        statement,
        rule,
        tuple(places),
        decided,
        _verdict(counts),
        number,
        (_summary(counts), *findings),
    )


def _decide(cells: Sequence[Cell]) -> list[Cell]:
    p_values = [None if cell.difference is None else cell.difference.p for cell in cells]
    corrected = iter(holm([p for p in p_values if p is not None], planned=len(cells)))
    both = [(cell, p if p is None else next(corrected)) for cell, p in zip(cells, p_values, strict=True)]
    return [replace(cell, outcome=_outcome(cell, p), p=p) for cell, p in both]


def _outcome(cell: Cell, p: float | None) -> Outcome:
    found = cell.difference
    if found is None:
        return "not run yet"
    if p is not None and p < LEVEL:
        return "true" if found.mean > cell.margin else "false"
    if found.half is not None and cell.bound is not None and abs(found.mean) + found.half <= cell.bound:
        return "level"
    return "not decided"


def _verdict(counts: Mapping[Outcome, int]) -> Verdict:
    total = sum(counts.values())
    if counts["not run yet"] == total:
        return "not run yet"
    if counts["false"] or counts["level"] == total:
        return "does not hold"
    if counts["not decided"] or counts["not run yet"]:
        return "not decided"
    return "holds partly" if counts["level"] else "holds"


def _summary(counts: Mapping[Outcome, int]) -> str:
    """How many comparisons came out how."""
    words: tuple[Outcome, ...] = ("true", "level", "not decided", "false", "not run yet")
    return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])

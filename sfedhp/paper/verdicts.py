"""Claims of the paper: the differences that each is about, and its verdict by tests over the seeds.

Every claim is a list of cells, each of which says "this difference is above this margin". A cell is

- **true** or **false** if the difference is significantly above or below the margin: a paired t-test over
  seeds, with Holm's correction over all cells of the claim, including those not run yet;
- **level** if it is neither and the 95 % interval is within the cell's `bound`;
- **not decided** otherwise.

A claim holds if all its cells are true. It does not hold if one is false or all are level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sfedhp.paper.significance import LEVEL, Difference, difference, format_p, holm

Outcome = Literal["true", "false", "level", "not decided", "not run yet"]
Verdict = Literal["holds", "holds partly", "does not hold", "not decided", "not run yet"]

OURS: Final = "Not the paper's"  # first words of the statement of a claim that we added
BOUND: Final = 0.5  # points within which two accuracies are level
RULE: Final = (
    f"A comparison is true or false if a paired t-test over seeds says so (p < {LEVEL} after Holm's "
    "correction over all comparisons of the claim, including those not run yet). It is level if it is "
    f"neither and the 95 % interval of the difference is within ±{BOUND} points. Otherwise it is not "
    "decided. A claim holds if all its comparisons are true. It does not hold if one is false or all are "
    "level. It holds partly if some are true and the others level. Otherwise it is not decided."
)


@dataclass(frozen=True)
class Cell:
    """One comparison that a claim is about: that a difference is above a margin."""

    about: str
    difference: Difference | None = None  # None: not run yet
    margin: float = 0.0
    unit: str = "points"
    bound: float | None = None  # differences within ± bound are level; None: none is
    outcome: Outcome = "not run yet"  # without a difference, what else decides it
    p: float | None = None  # corrected

    def line(self) -> str:
        """The comparison in words, with its numbers."""
        if self.difference is None:
            return f"{self.about}: {self.outcome}"
        half = "one seed" if self.difference.half is None else f"± {self.difference.half:.2f}"
        p = "" if self.p is None else f", {format_p(self.p)}"
        goal = f", must be above {self.margin:g}" if self.margin else ""
        return f"{self.about}: {self.difference.mean:+z.2f} {half} {self.unit}{goal} ({self.outcome}{p})"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what our runs say about it."""

    title: str
    statement: str  # the paper's sentence, or ours
    rule: str  # which figures are compared
    places: tuple[str, ...]  # the tables and figures that have them
    cells: tuple[Cell, ...]  # the comparisons, with their outcomes
    verdict: Verdict
    number: str  # the result in short
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
        number = f"true in {counts['true']} of {len(decided) - counts['not run yet']} comparisons"
        if ranges := list(_ranges(decided)):
            number += f"; differences {', '.join(ranges)}"
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


def _ranges(cells: Sequence[Cell]) -> Iterator[str]:
    """The least and the greatest difference in each unit."""
    for unit in dict.fromkeys(cell.unit for cell in cells if cell.difference is not None):
        gaps = [cell.difference.mean for cell in cells if cell.difference is not None and cell.unit == unit]
        yield f"{min(gaps):+z.1f} to {max(gaps):+z.1f} {unit}"


def _decide(cells: Sequence[Cell]) -> list[Cell]:
    p_values = [None if cell.difference is None else cell.difference.p for cell in cells]
    planned = sum(cell.difference is not None or cell.outcome == "not run yet" for cell in cells)
    corrected = iter(holm([p for p in p_values if p is not None], planned=planned))
    both = [(cell, p if p is None else next(corrected)) for cell, p in zip(cells, p_values, strict=True)]
    return [replace(cell, outcome=_outcome(cell, p), p=p) for cell, p in both]


def _outcome(cell: Cell, p: float | None) -> Outcome:
    found = cell.difference
    if found is None:
        return cell.outcome
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
    """The number of comparisons with each verdict, in words."""
    words: tuple[Outcome, ...] = ("true", "level", "not decided", "false", "not run yet")
    return ", ".join(f"{counts[word]} {word}" for word in words if counts[word])

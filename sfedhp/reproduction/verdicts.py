"""A claim of the paper: the rule that decides it, the verdict, and what the records say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sfedhp.reproduction.rows import Row
from sfedhp.reproduction.significance import LEVEL, paired

Verdict = Literal["holds", "holds partly", "does not hold", "not run yet"]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and what became of it."""

    statement: str
    rule: str
    verdict: Verdict
    findings: tuple[str, ...]  # one line each


def of_cells(outcomes: Sequence[bool | None], wanted: int) -> Verdict:
    """The verdict of a claim about `wanted` cells; None stands for one that was not run."""
    known = [each for each in outcomes if each is not None]
    if not known:
        return "not run yet"
    if all(known) and len(known) == wanted:
        return "holds"
    return "holds partly" if any(known) else "does not hold"


def compare(left: Row | None, right: Row | None) -> tuple[bool | None, str]:
    """Whether the left one is significantly above in the last round, and a line saying so."""
    if left is None or right is None:
        return None, "not run yet"
    gap, chance = left.ours_last - right.ours_last, paired(left.last, right.last)
    said = "one seed" if chance is None else f"p = {chance:.3f}"
    word = "above" if gap > 0 else "below"
    sure = chance is not None and chance < LEVEL
    line = (
        f"{left.variant} {left.ours_last:.2f} is {abs(gap):.2f} {word} {right.variant} {right.ours_last:.2f} "
        f"({said}{'' if sure else ', within the seeds'})"
    )
    return gap > 0 and sure, line

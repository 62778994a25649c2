"""A claim of the paper: the rule that decides it, the verdict, and what the records say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sfedhp.paper.rows import Row
from sfedhp.paper.significance import LEVEL, format_p, paired_t_test

Verdict = Literal["holds", "holds partly", "does not hold", "not run yet"]

Decision = tuple[bool | None, str]  # whether it is true in a cell (None: not run yet), and a line about it


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what our runs say about it."""

    statement: str
    rule: str
    verdict: Verdict
    findings: tuple[str, ...]  # one line each


def claim_of_cells(statement: str, rule: str, cells: Sequence[Decision], wanted: int) -> Claim:
    """A claim about `wanted` cells: it holds if it is true in all of them, and partly if in some."""
    known = [outcome for outcome, _ in cells if outcome is not None]
    rule = f"{rule} Holds: in all {wanted}. Partly: in some."
    findings = tuple(line for _, line in cells)
    if not known:
        return Claim(statement, rule, "not run yet", findings)
    verdict: Verdict = "holds partly" if any(known) else "does not hold"
    if all(known) and len(known) == wanted:
        verdict = "holds"
    missing = f"; {wanted - len(known)} are not run yet" if len(known) < wanted else ""
    return Claim(statement, rule, verdict, (f"true in {sum(known)} of {len(known)}{missing}", *findings))


def compare(left: Row | None, right: Row | None) -> Decision:
    """Whether the left row is significantly above the right one in the last round, over common seeds."""
    if left is None or right is None:
        return None, "not run yet"
    common = left.last.keys() & right.last.keys()
    if not common:
        return None, f"{left.variant} and {right.variant} have no seed in common"
    ours, theirs = (statistics.fmean(row.last[seed] for seed in common) for row in (left, right))
    gap, p = ours - theirs, paired_t_test(left.last, right.last)
    word = "above" if gap > 0 else "below"
    significant = p is not None and p < LEVEL
    fewer = f", {len(common)} seeds in common" if 1 < len(common) < max(left.seeds, right.seeds) else ""
    line = (
        f"{left.variant} {ours:.2f} is {abs(gap):.2f} {word} {right.variant} {theirs:.2f} "
        f"({format_p(p)}{fewer}{'' if significant else ', not significant'})"
    )
    return gap > 0 and significant, line

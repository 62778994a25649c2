"""What the tables of runs share: the mark of the best round, and which runs were stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rich.console import Console

_BEST = "* best of all rounds, chosen on the test data: too optimistic to report alone."


def explain_best(console: Console, headings: Collection[str]) -> None:
    """Print what the mark of the best round means, if one of the headings has it."""
    if any(heading.endswith("best*") for heading in headings):
        console.print(_BEST)


def stopped_after(summary: Mapping[str, Any]) -> int | None:
    """The last round of a run that was stopped; None if it finished or diverged."""
    done: int = summary["rounds"]
    return None if summary["finished"] or summary["trouble"] else done

"""Shared parts of the tables of runs: the mark of the best round, and which runs were stopped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich.console import Console

from sfedhp.nn.problems import METRICS

_BEST = "* best of all rounds, chosen on the test data: too optimistic to report alone."


def explain_best(console: Console, headings: Collection[str]) -> None:
    """Print the meaning of the mark of the best round, if one of the headings has this mark."""
    if any(heading.endswith("best*") for heading in headings):
        console.print(_BEST)


def explain_metric(console: Console, summaries: Iterable[Mapping[str, Any]]) -> None:
    """Print the name of the metric, if the figures are not accuracies."""
    for name in dict.fromkeys(summary["metric"] for summary in summaries):
        metric = METRICS[name]
        if name != "accuracy":
            better = "higher" if metric.higher_is_better else "lower"
            console.print(f"The figures are {metric.heading}: {better} is better.")


def stopped_after(summary: Mapping[str, Any]) -> int | None:
    """The last round of a run that was stopped; None if it finished or diverged."""
    done: int = summary["rounds"]
    return None if summary["finished"] or summary["trouble"] else done

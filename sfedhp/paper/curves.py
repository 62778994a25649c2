"""The curves of a figure: the mean over seeds of what a variant's records hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfedhp.paper.records import Record
from sfedhp.paper.rows import TAIL, final_records
from sfedhp.paper.studies import Study

_LOOPS = ("edge_rounds", "local_rounds", "local_steps", "personal_steps")  # nested loops of a client


@dataclass(frozen=True)
class Curve:
    """One line of a figure, round by evaluated round."""

    variant: str
    kind: str  # its family: the variant's name without the first word
    columns: Mapping[str, Sequence[float]]  # means over seeds; including "round"
    runs: Mapping[int, Mapping[str, Sequence[Any]]] = field(default_factory=dict)  # the columns of each seed
    diverged: bool = False  # whether a run diverged
    steps: int = 1  # gradient steps of a client in a cloud round

    @property
    def strength(self) -> float:
        """The number in the first word of the variant's name: 0.001 of "γ=1e-3 scheduled"."""
        return float(self.variant.split()[0].partition("=")[2])

    def last(self, name: str) -> float:
        """The last value of a column."""
        return self.columns[name][-1]

    def best(self, name: str) -> float:
        """The highest value of a column."""
        return max(self.columns[name])

    def tails(self, name: str) -> dict[int, float]:
        """By seed, the mean of the last `TAIL` evaluations of a column."""
        return {seed: statistics.fmean(run[name][-TAIL:]) for seed, run in self.runs.items()}

    def ends(self, name: str) -> dict[int, float]:
        """By seed, the last value of a column."""
        return {seed: run[name][-1] for seed, run in self.runs.items()}

    def rounds_to(self, name: str, goals: Mapping[int, float]) -> dict[int, float]:
        """By seed, the first evaluated round in which a column reaches the goal.

        A run that never does counts as one that would with its next evaluation: too early, if anything.
        """
        return {seed: self._first_round(self.runs[seed], name, goal) for seed, goal in goals.items()}

    @staticmethod
    def _first_round(run: Mapping[str, Sequence[Any]], name: str, goal: float) -> float:
        turns = run["round"]
        pairs = zip(turns, run[name], strict=True)
        never = turns[-1] + (turns[-1] - turns[-2] if len(turns) > 1 else turns[-1])
        return float(next((turn for turn, value in pairs if value >= goal), never))


def curves(study: Study, records: Sequence[Record]) -> list[Curve]:
    """The curve of each variant that has records."""
    lines = []
    for variant in study.variants:
        runs = final_records(study, variant, records)
        if not runs:
            continue
        # A run that diverged ended early: the mean goes as far as all seeds got.
        length = min(len(run.curve["round"]) for run in runs)
        names = [name for name in runs[0].curve if all(name in run.curve for run in runs)]
        columns = {
            name: [
                statistics.fmean(run.curve[name][turn] for run in runs)
                for turn in range(length)
                if all(run.curve[name][turn] is not None for run in runs)
            ]
            for name in names
        }
        columns = {name: column for name, column in columns.items() if len(column) == length}
        lines.append(
            Curve(
                variant,
                variant.partition(" ")[2],
                columns,
                {run.seed: run.curve for run in runs},
                any(run.trouble for run in runs),
                math.prod(runs[0].config["algorithm"].get(name, 1) for name in _LOOPS),
            )
        )
    return lines

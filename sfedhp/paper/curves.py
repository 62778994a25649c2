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
    family: str  # the variant's name without the first word
    columns: Mapping[str, Sequence[float]]  # means over seeds; including "round"
    runs: Mapping[int, Mapping[str, Sequence[Any]]] = field(default_factory=dict)  # the columns of each seed
    diverged: bool = False  # whether a run diverged
    steps: int = 1  # gradient steps of a client in a cloud round
    rounds: int = 0  # that every run was to have; one that diverged has fewer

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

    def has(self, name: str) -> bool:
        """Whether every run has a column."""
        return all(name in run for run in self.runs.values())

    def tails(self, name: str) -> dict[int, float]:
        """By seed, the mean of the last `TAIL` evaluations of a column; a missing value counts as 0."""
        return {
            seed: statistics.fmean([value or 0.0 for value in run.get(name, ())][-TAIL:] or [0.0])
            for seed, run in self.runs.items()
        }

    def ends(self, name: str) -> dict[int, float]:
        """By seed, the last value of a column."""
        return {seed: run[name][-1] for seed, run in self.runs.items()}

    def rounds_to(self, name: str, goals: Mapping[int, float]) -> dict[int, float]:
        """By seed, the first evaluated round in which a column reaches the goal.

        A run that never reaches it counts as if it would one evaluation after the last, which favours that
        run. If it diverged, the last is that of the runs that did not.
        """
        return {seed: self._first_round(self.runs[seed], name, goal) for seed, goal in goals.items()}

    def spent_to(self, name: str, goals: Mapping[int, float], cost: str) -> dict[int, float]:
        """By seed, an accumulated column when another reaches the goal; if it never does, at the end."""
        found = {}
        for seed, goal in goals.items():
            run = self.runs[seed]
            pairs = zip(run[cost], run[name], strict=True)
            found[seed] = float(
                next((spent for spent, value in pairs if (value or 0.0) >= goal), run[cost][-1])
            )
        return found

    def _first_round(self, run: Mapping[str, Sequence[Any]], name: str, goal: float) -> float:
        turns = run.get("round", ())
        pairs = zip(turns, run.get(name, ()), strict=True)
        step = turns[-1] - turns[-2] if len(turns) > 1 else (turns[0] if turns else 0)
        never = max(self.rounds, turns[-1] if turns else 0) + step
        return float(next((turn for turn, value in pairs if (value or 0.0) >= goal), never))


def curves(study: Study, records: Sequence[Record], *, whole: bool = False) -> list[Curve]:
    """The curve of each variant that has records.

    Args:
        study: the figure.
        records: of any studies.
        whole: also give a curve without runs for each variant that has no records. Claims need it: they
            count the comparisons that are not run yet.
    """
    lines = []
    for variant in study.variants:
        runs = final_records(study, variant, records)
        if not runs:
            if whole:
                lines.append(Curve(variant, variant.partition(" ")[2], {}))
            continue
        # A run that diverged ended early: the mean goes as far as all seeds got.
        length = min(len(run.curve.get("round", ())) for run in runs)
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
                runs[0].rounds,
            )
        )
    return lines

"""The result of a run: its experiment, history and models, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import nn

from sfedhp.config import Experiment
from sfedhp.data.schema import Schema
from sfedhp.nn.problems import KINDS, METRICS, problem_of
from sfedhp.runs.models import Models
from sfedhp.runs.record_file import Row
from sfedhp.runs.records import summarize


@dataclass(frozen=True, repr=False)
class Run:
    """A run that ended: finished, stopped between two rounds, or diverged."""

    experiment: Experiment  # as resolved
    history: list[Row]  # a row a round
    models: Models
    folder: Path | None
    finished: bool
    schema: Schema | None = None  # of its data

    def __repr__(self) -> str:
        """Four lines: what was run, how it ended, its last figures, and its folder."""
        summary = self.summary
        metric = METRICS[summary["metric"]]
        figures = {kind.upper(): summary[f"{metric.column(kind)}_last"] for kind in KINDS}
        found = [f"{kind} {metric.text(value)}" for kind, value in figures.items() if value is not None]
        return "\n".join(
            [
                f"<Run of {summary['algorithm']} on {summary['source']}, seed {summary['seed']}:",
                f" after round {summary['rounds']} of {self.experiment.rounds}",
                f" {metric.heading}: {', '.join(found) or 'not evaluated'}",
                f" folder: {self.folder}>",
            ]
        )

    @property
    def summary(self) -> Row:
        """The final metrics as one flat dictionary, as `summarize` describes it."""
        return {
            "algorithm": self.experiment.algorithm_name,
            "source": self.experiment.data.source,
            "seed": self.experiment.seed,
            **summarize(
                self.history,
                self.experiment.evaluation.norm_statistics,
                problem_of(self.experiment.problem),
            ),
            "finished": self.finished,
            "folder": None if self.folder is None else str(self.folder),
        }

    @property
    def global_model(self) -> nn.Module | None:
        """The global model w; None if the method has none."""
        return self.models.global_model()

    @property
    def edge_models(self) -> list[nn.Module | None]:
        """The model of each edge; None if the method has none."""
        return [self.models.edge_model(edge) for edge in range(self.experiment.edges)]

    @property
    def client_models(self) -> list[list[nn.Module | None]]:
        """The model of each client, by edge and seat; None if the method has none or the seat is empty."""
        return [
            [self.models.client_model(edge, seat) for seat in range(size)]
            for edge, size in enumerate(self.experiment.edge_sizes)
        ]


class Outcome(NamedTuple):
    """A run as it ended, and why it diverged if it did."""

    run: Run
    error: str | None  # what diverged, in a sentence; None: it did not diverge

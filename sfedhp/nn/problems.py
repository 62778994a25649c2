"""Prediction problems: classes, several labels at once, numbers, or the inputs themselves.

A problem defines which losses and metrics fit. `runs.metrics` computes the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sfedhp.core.errors import InputError
from sfedhp.core.formats import digits
from sfedhp.core.types import ProblemName

KINDS: Final = ("pm", "em", "gm")  # personalized, edge and global model


class Metric(NamedTuple):
    """A figure of a model, as tables name it."""

    name: str  # in `evaluation.metrics` and in the columns of a history
    title: str
    higher_is_better: bool = True
    percent: bool = True  # otherwise in the unit of the target, or without a unit

    def better(self, first: float, second: float) -> bool:
        """Whether the first value is better than the second."""
        return first > second if self.higher_is_better else first < second

    def gain(self, before: float, after: float) -> float:
        """By how much the second value is better: points of a percentage, or % of the first value."""
        change = after - before if self.higher_is_better else before - after
        if self.percent:
            return change
        return 100 * change / abs(before) if before else 0.0

    @property
    def improving(self) -> str:
        """The word for values that become better: rising or falling."""
        return "rising" if self.higher_is_better else "falling"

    @property
    def heading(self) -> str:
        """The title with the unit, for a table."""
        return f"{self.title}, %" if self.percent else self.title

    def text(self, value: float | None) -> str:
        """A value as tables show it."""
        if value is None:
            return "–"
        return f"{value:.2f}" if self.percent else digits(value, 4)

    def column(self, kind: str) -> str:
        """The column of a kind of model (`pm`, `em`, `gm`): `gm` for the accuracy, else such as `gm_rmse`."""
        return kind if self.name == "accuracy" else f"{kind}_{self.name}"


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy"),
        Metric("balanced_accuracy", "balanced accuracy"),
        Metric("macro_f1", "macro F1"),
        Metric("auroc", "AUROC"),
        Metric("log_loss", "log loss", higher_is_better=False, percent=False),
        Metric("label_accuracy", "label accuracy"),
        Metric("subset_accuracy", "subset accuracy"),
        Metric("rmse", "RMSE", higher_is_better=False, percent=False),
        Metric("mae", "MAE", higher_is_better=False, percent=False),
        Metric("r2", "R²", percent=False),
    )
}


@dataclass(frozen=True)
class Problem:
    """A kind of prediction, with the losses and metrics that fit it."""

    name: ProblemName
    losses: tuple[str, ...]  # the default first
    reported: tuple[str, ...]  # metrics of every run; by the first one rounds are chosen
    extra: tuple[str, ...] = ()  # metrics on request

    @property
    def main(self) -> Metric:
        """The metric by which models are compared."""
        return METRICS[self.reported[0]]

    def metrics(self, requested: tuple[str, ...] = ()) -> tuple[Metric, ...]:
        """The metrics of a run, the main one first.

        Args:
            requested: the option `evaluation.metrics`.

        Raises:
            InputError: one is not known, or does not fit the problem.
        """
        for name in requested:
            if name not in (*self.reported, *self.extra):
                known = ", ".join((*self.reported, *self.extra))
                what = f"does not fit problem = {self.name}" if name in METRICS else "is not known"
                raise InputError(f"evaluation.metrics: {name!r} {what}: use {known}.")
        return tuple(METRICS[name] for name in dict.fromkeys((*self.reported, *requested)))


PROBLEMS: Final[dict[str, Problem]] = {
    problem.name: problem
    for problem in (
        Problem(
            "classification",
            ("cross_entropy",),
            ("accuracy",),
            ("balanced_accuracy", "macro_f1", "auroc", "log_loss"),
        ),
        Problem(
            "multilabel", ("bce",), ("macro_f1", "label_accuracy"), ("subset_accuracy", "auroc", "log_loss")
        ),
        Problem("regression", ("mse", "mae", "huber"), ("rmse", "mae", "r2")),
        Problem("reconstruction", ("mse", "mae", "huber"), ("rmse", "mae")),
    )
}
CLASSIFICATION: Final = PROBLEMS["classification"]


def main_metric(row: Mapping[str, object]) -> Metric:
    """The main metric of a run, by the columns of a row of its history; accuracy if it has none."""
    mains = [problem.main for problem in PROBLEMS.values()]
    return next((main for main in mains if any(main.column(kind) in row for kind in KINDS)), mains[0])


def problem_of(option: str) -> Problem:
    """The problem of a resolved config, in which `auto` means classes."""
    return PROBLEMS.get(option, CLASSIFICATION)

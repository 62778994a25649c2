"""Metrics of a round from what every client counted on its own rows: the one definition of each.

Simulation and deployment both use it. A metric is a column of the history. `pm`, `em` and `gm` are the
accuracy over all rows in percent, `gm_rmse` and the like the other metrics of `nn.problems`; after such a
name, `_macro` is the mean over clients, `_spread` their standard deviation, `_worst` the mean of the worst
tenth of the clients, `_validation` the same metric on validation rows. `gm_loss` is the mean loss of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.nn.problems import CLASSIFICATION, KINDS, Metric

# What a client of a deployment reports, for its test, validation and training rows and by kind of model
# ("loss" for the training rows), as `report_of` gives it.
ClientReport = Mapping[str, Mapping[str, Sequence[Any]]]

Total = Callable[[Tensor], Tensor]  # the sum over clients, (*runs, *clients, *shape) to (*runs, *shape)
Sums = Mapping[str, Tensor]  # sums over rows by name, (*runs, *clients, *shape); see `runs.counting`
_ACCURACY: Final = CLASSIFICATION.main


class Counts(NamedTuple):
    """What each client counted for one kind of model."""

    sums: Sums
    loss: Tensor  # (*runs, *clients), summed over rows
    rows: Tensor  # (*runs, *clients); 0 for a client that does not count

    def map(self, function: Callable[[Tensor], Tensor]) -> Counts:
        """The counts with a function applied to every tensor."""
        sums = {name: function(each) for name, each in self.sums.items()}
        return Counts(sums, function(self.loss), function(self.rows))


def over_clients(runs: int, axes: int | None = None) -> Total:
    """The sum over the clients of a stack.

    Args:
        runs: how many of the first axes (0 or 1) are separate runs.
        axes: how many axes after these are clients, or as many as a tensor has; None: all.
    """

    def total(each: Tensor) -> Tensor:
        last = each.ndim if axes is None else min(runs + axes, each.ndim)
        return each.flatten(runs, last - 1).sum(runs)

    return total


def value_of(metric: Metric, counts: Counts) -> Tensor:
    """The metric of each client, (*runs, *clients), or of all together where the counts are totals.

    It is NaN where it is not defined, such as R² of a single row.
    """
    return _FORMULAS[metric.name](counts.sums, counts.rows)


def micro(metric: Metric, counts: Counts, total: Total) -> Tensor:
    """The metric over all rows of all clients."""
    return value_of(metric, counts.map(total))


def mean_loss(counts: Counts, total: Total) -> Tensor:
    """The loss of a row, averaged over all rows of all clients."""
    return total(counts.loss) / total(counts.rows)


def client_metrics(metric: Metric, kind: str, counts: Counts, total: Total) -> dict[str, Tensor]:
    """How a metric of a kind of model varies between clients: mean, spread, worst tenth.

    A client without rows, or for which the metric is not defined, does not count.
    """
    each = value_of(metric, counts)
    present = (counts.rows > 0) & ~each.isnan()
    each = torch.where(present, each, 0.0)
    clients = total(present.double())
    macro = total(each * present) / clients
    centered = each - macro.reshape(*macro.shape, *(1,) * (each.ndim - macro.ndim))
    last = torch.inf if metric.higher_is_better else -torch.inf
    ranked = torch.where(present, each, last).flatten(macro.ndim)
    ranked = ranked.sort(-1, descending=not metric.higher_is_better).values
    tenth = (0.1 * clients).ceil()
    most = max(int(tenth.max()), 1)
    worst = torch.where(torch.arange(most, device=each.device) < tenth.unsqueeze(-1), ranked[..., :most], 0.0)
    column = metric.column(kind)
    return {
        f"{column}_macro": macro,
        f"{column}_spread": (total(torch.where(present, centered, 0.0) ** 2) / clients).sqrt(),
        f"{column}_worst": total(worst) / tenth,
    }


def report_of(counts: Counts) -> Any:
    """The report of a client of a deployment on its own counts, which have no axes of clients.

    Returns:
        Correct rows, rows and summed loss; where more was counted, all sums by name come first.
    """
    sums: Any = {name: each.tolist() for name, each in counts.sums.items()}
    if list(sums) == ["correct"]:
        sums = int(sums["correct"])
    return [sums, int(counts.rows), float(counts.loss)]


def metrics_of_reports(
    reports: Sequence[ClientReport], metrics: Sequence[Metric] = (_ACCURACY,)
) -> dict[str, float]:
    """A round's columns from the reports of a deployment's clients; no column without a row to count on.

    Args:
        reports: of all clients that answered.
        metrics: those of the run, the main one first.
    """
    columns: dict[str, Tensor] = {}
    for kind in KINDS:
        if (test := _counts(reports, "test", kind)) is None:
            continue
        for metric in metrics:
            columns[metric.column(kind)] = micro(metric, test, _one_by_one)
            # The order of a sum decides its last bit: here clients are added from the worst to the best.
            ordered = test.map(itemgetter(value_of(metric, test).argsort()))
            columns |= client_metrics(metric, kind, ordered, _one_by_one)
        columns[f"{kind}_loss"] = mean_loss(test, _one_by_one)
        if (validation := _counts(reports, "validation", kind)) is not None:
            columns[f"{metrics[0].column(kind)}_validation"] = micro(metrics[0], validation, _one_by_one)
    if (train := _counts(reports, "train", "loss")) is not None:
        columns["train_loss"] = mean_loss(train, _one_by_one)
    return {name: value.item() for name, value in columns.items()}


def _counts(reports: Sequence[ClientReport], part: str, kind: str) -> Counts | None:
    """The counts of the clients that report this part; None if these have no rows."""
    found = [report[part][kind] for report in reports if kind in report.get(part, {})]
    if not any(rows for _, rows, _ in found):
        return None

    def stacked(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    counted = [sums if isinstance(sums, Mapping) else {"correct": sums} for sums, _, _ in found]
    return Counts(
        {name: stacked([sums[name] for sums in counted]) for name in counted[0]},
        stacked([loss for _, _, loss in found]),
        stacked([rows for _, rows, _ in found]),
    )


def _one_by_one(each: Tensor) -> Tensor:
    """The sum over the clients of one run, added in their order."""
    return each.cumsum(0)[-1]


def _share(name: str) -> Callable[[Sums, Tensor], Tensor]:
    """A sum as a percentage of the rows."""
    return lambda sums, rows: 100 * sums[name] / rows.clamp_min(1)


def _balanced_accuracy(sums: Sums, rows: Tensor) -> Tensor:
    """The mean recall of the classes that have rows."""
    return 100 * (sums["hits"] / sums["held"]).nanmean(-1)


def _macro_f1(sums: Sums, rows: Tensor) -> Tensor:
    """The mean F1 of the classes or labels that occur or are predicted."""
    return 100 * (2 * sums["hits"] / (sums["held"] + sums["predicted"])).nanmean(-1)


def _auroc(sums: Sums, rows: Tensor) -> Tensor:
    """The mean over classes or labels of P(score of a positive row > score of a negative one), ties half.

    The rows are those of a histogram of scores, so that it can be added up; see `runs.counting`.
    """
    positives, negatives = sums["positives"], sums["negatives"]
    below = negatives.cumsum(-1) - negatives / 2
    wins = (positives * below).sum(-1)
    return 100 * (wins / (positives.sum(-1) * negatives.sum(-1))).nanmean(-1)


def _log_loss(sums: Sums, rows: Tensor) -> Tensor:
    return sums["log_loss"] / rows


def _rmse(sums: Sums, rows: Tensor) -> Tensor:
    """The root of the mean squared error, averaged over targets."""
    return (sums["squared"] / rows.unsqueeze(-1)).sqrt().mean(-1)


def _mae(sums: Sums, rows: Tensor) -> Tensor:
    return (sums["absolute"] / rows.unsqueeze(-1)).mean(-1)


def _r2(sums: Sums, rows: Tensor) -> Tensor:
    """1 − Σ(y − ŷ)²/Σ(y − ȳ)², averaged over targets; not defined where a target does not vary."""
    offset, square = sums["offset"], sums["offset_squared"]
    about_mean = square - offset**2 / rows.unsqueeze(-1)
    # If all targets are equal, the remainder is rounding.
    varies = about_mean > 1e-12 * square.clamp_min(math.ulp(0.0))
    return torch.where(varies, 1 - sums["squared"] / about_mean, torch.nan).mean(-1)


_FORMULAS: Final[Mapping[str, Callable[[Sums, Tensor], Tensor]]] = {
    "accuracy": _share("correct"),
    "balanced_accuracy": _balanced_accuracy,
    "macro_f1": _macro_f1,
    "auroc": _auroc,
    "log_loss": _log_loss,
    "label_accuracy": _share("label_correct"),
    "subset_accuracy": _share("subset_correct"),
    "rmse": _rmse,
    "mae": _mae,
    "r2": _r2,
}

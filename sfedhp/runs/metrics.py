"""Metrics of a round from what every client counted on its own rows: the one definition of each.

Simulation and deployment both use it. A metric is a column of the history: `pm`, `em` and `gm` are the
accuracy over all rows in percent, `_macro` the mean over clients, `_spread` their standard deviation,
`_worst` the mean of the worst tenth of the clients, `_loss` the mean loss of a row, `_validation` the
accuracy on validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

KINDS: Final = ("pm", "em", "gm")  # personalized, edge and global model

# What a client of a deployment reports, for its test, validation and training rows and by kind of model
# ("loss" for the training rows): correct rows, rows, summed loss.
ClientReport = Mapping[str, Mapping[str, Sequence[float]]]

Total = Callable[[Tensor], Tensor]  # the sum over clients, (*runs, *clients) to (*runs)


class Counts(NamedTuple):
    """What each client counted for one kind of model."""

    correct: Tensor  # (*runs, *clients)
    loss: Tensor  # (*runs, *clients), summed over rows
    rows: Tensor  # (*runs, *clients); 0 for a client that does not count


def over_clients(runs: int) -> Total:
    """The sum over the clients of a stack, whose first axes (0 or 1) are separate runs."""
    return lambda each: each.flatten(runs).sum(-1)


def accuracy(counts: Counts, total: Total) -> Tensor:
    """Correct rows of all clients, in percent of all rows: the micro average."""
    return 100 * total(counts.correct) / total(counts.rows).clamp_min(1)


def mean_loss(counts: Counts, total: Total) -> Tensor:
    """The loss of a row, averaged over all rows of all clients."""
    return total(counts.loss) / total(counts.rows)


def client_metrics(kind: str, counts: Counts, total: Total) -> dict[str, Tensor]:
    """How the accuracy of a kind of model varies between clients: mean, spread, worst tenth."""
    present = counts.rows > 0
    each = 100 * counts.correct / counts.rows.clamp_min(1)
    clients = total(present.double())
    macro = total(each * present) / clients
    centered = each - macro.reshape(*macro.shape, *(1,) * (each.ndim - macro.ndim))
    ranked = torch.where(present, each, torch.inf).flatten(macro.ndim).sort(-1).values
    tenth = math.ceil(0.1 * int(clients.reshape(-1)[0]))
    return {
        f"{kind}_macro": macro,
        f"{kind}_spread": (total(torch.where(present, centered, 0.0) ** 2) / clients).sqrt(),
        f"{kind}_worst": total(ranked[..., :tenth]) / tenth,
    }


def metrics_of_reports(reports: Sequence[ClientReport]) -> dict[str, float]:
    """A round's columns from the reports of a deployment's clients; no column without a row to count on."""
    columns: dict[str, Tensor] = {}
    for kind in KINDS:
        if (test := _counts(reports, "test", kind)) is None:
            continue
        columns[kind] = accuracy(test, _one_by_one)
        # The order of a sum decides its last bit: here clients are added from the worst to the best.
        order = (test.correct / test.rows.clamp_min(1)).argsort()
        columns |= client_metrics(kind, Counts(*(each[order] for each in test)), _one_by_one)
        columns[f"{kind}_loss"] = mean_loss(test, _one_by_one)
        if (validation := _counts(reports, "validation", kind)) is not None:
            columns[f"{kind}_validation"] = accuracy(validation, _one_by_one)
    if (train := _counts(reports, "train", "loss")) is not None:
        columns["train_loss"] = mean_loss(train, _one_by_one)
    return {name: value.item() for name, value in columns.items()}


def _counts(reports: Sequence[ClientReport], part: str, kind: str) -> Counts | None:
    """The counts of the clients that report this part; None where these have no rows."""
    found = [report[part][kind] for report in reports if kind in report.get(part, {})]
    if not any(rows for _, rows, _ in found):
        return None
    correct, rows, loss = torch.tensor(found, dtype=torch.float64).unbind(-1)
    return Counts(correct, loss, rows)


def _one_by_one(each: Tensor) -> Tensor:
    """The sum over the clients of one run, added in their order."""
    return each.cumsum(-1)[-1]

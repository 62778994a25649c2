"""The counts of a client on its own rows: sums from which `runs.metrics` computes every metric.

Sums of several clients can be added, so a client of a deployment reports only sums and no rows. They are
exact, except those of the AUROC: these are a histogram of the scores with `BINS` bins, and scores in one bin
count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.nn.losses import RowLoss, cross_entropy_of_rows
from sfedhp.nn.problems import CLASSIFICATION, Metric, Problem
from sfedhp.nn.row_losses import binary_cross_entropy
from sfedhp.runs.metrics import Counts

BINS: Final = 1024  # of the log-odds of a class or label
_RANGE: Final = 16.0  # log-odds beyond ± this fall into the outermost bins
_LINEAR: Final = 0.3  # up to about these log-odds bins are equally wide, beyond them wider and wider


class Scored(NamedTuple):
    """The counts and predictions of a kind of model on the rows of every client."""

    counts: Counts
    predicted: Tensor  # (*lead, rows): the class of each row, meaningless for padding rows; or no rows


@dataclass(frozen=True)
class Counting:
    """The options of counting in a run: metrics, problem, loss and unit."""

    problem: Problem = CLASSIFICATION
    metrics: tuple[Metric, ...] = (CLASSIFICATION.main,)
    loss: RowLoss = cross_entropy_of_rows
    # A target in its own unit is output · unit + its mean in training; (*runs, *1, targets) or one number.
    unit: Tensor | float = 1.0

    def count(self, scores: Tensor, labels: Tensor, real: Tensor) -> Scored:
        """The counts and losses of each client's rows, and the predicted classes.

        Args:
            scores: (*lead, rows, outputs).
            labels: (*lead, rows, *target).
            real: (*lead, rows): which rows count.
        """
        losses = self.loss(scores, labels)
        loss = torch.where(real, losses, 0.0).sum(-1).double()
        sums = _COUNTS[self.problem.name](self, scores, labels, real)
        predicted = real[..., :0].long()
        if self.problem is CLASSIFICATION:
            predicted = scores.argmax(-1)
            sums = {"correct": ((predicted == labels) & real).sum(-1).double(), **sums}
        return Scored(Counts(sums, loss, real.sum(-1)), predicted)

    def shapes(self, outputs: int) -> dict[str, tuple[int, ...]]:
        """The shape of each sum of a client, for networks with this number of outputs."""
        labels = torch.zeros((0,) if self.problem is CLASSIFICATION else (0, outputs), dtype=torch.int64)
        counts = self.count(torch.zeros(0, outputs), labels, torch.zeros(0, dtype=torch.bool)).counts
        return {name: tuple(each.shape) for name, each in counts.sums.items()}

    def wants(self, *names: str) -> bool:
        """Whether one of these metrics is asked for."""
        return any(metric.name in names for metric in self.metrics)


def add(first: Counts, second: Counts) -> Counts:
    """The counts of the rows of both."""
    sums = {name: each + second.sums[name] for name, each in first.sums.items()}
    return Counts(sums, first.loss + second.loss, first.rows + second.rows)


def _classes(counting: Counting, scores: Tensor, labels: Tensor, real: Tensor) -> dict[str, Tensor]:
    wanted, sums = counting.wants, dict[str, Tensor]()
    if wanted("balanced_accuracy", "macro_f1", "auroc"):
        held = _one_hot(labels, scores.shape[-1]) & real.unsqueeze(-1)
        if wanted("balanced_accuracy", "macro_f1"):
            predicted = _one_hot(scores.argmax(-1), scores.shape[-1]) & real.unsqueeze(-1)
            sums |= _hits(held, predicted)
        if wanted("auroc"):
            rest = torch.stack([_others(scores, place) for place in range(scores.shape[-1])], -1)
            sums |= _histograms(scores - rest, held, real)
    if wanted("log_loss"):
        sums["log_loss"] = _sum(cross_entropy_of_rows(scores, labels), real)
    return sums


def _labels(counting: Counting, scores: Tensor, labels: Tensor, real: Tensor) -> dict[str, Tensor]:
    true, predicted = labels.bool(), scores > 0
    right = predicted == true
    there = real.unsqueeze(-1)
    sums = _hits(true & there, predicted & there)
    sums["label_correct"] = _sum(right.double().mean(-1), real)
    if counting.wants("subset_accuracy"):
        sums["subset_correct"] = _sum(right.all(-1), real)
    if counting.wants("auroc"):
        sums |= _histograms(scores, true & there, real)
    if counting.wants("log_loss"):
        sums["log_loss"] = _sum(binary_cross_entropy(scores, labels), real)
    return sums


def _numbers(counting: Counting, scores: Tensor, labels: Tensor, real: Tensor) -> dict[str, Tensor]:
    target = labels.double() * counting.unit
    error = scores.double() * counting.unit - target
    parts = {"squared": error**2, "absolute": error.abs(), "offset": target, "offset_squared": target**2}
    there = real.unsqueeze(-1)
    return {name: torch.where(there, part, 0.0).sum(-2) for name, part in parts.items()}


def _values(counting: Counting, scores: Tensor, labels: Tensor, real: Tensor) -> dict[str, Tensor]:
    """The values of a reconstruction: all values of an input count as one target."""
    error = scores.double() - labels.double()
    return {
        "squared": _sum(error.square().mean(-1), real).unsqueeze(-1),
        "absolute": _sum(error.abs().mean(-1), real).unsqueeze(-1),
    }


_COUNTS: Final[Mapping[str, Callable[[Counting, Tensor, Tensor, Tensor], dict[str, Tensor]]]] = {
    "classification": _classes,
    "multilabel": _labels,
    "regression": _numbers,
    "reconstruction": _values,
}


def _sum(each: Tensor, real: Tensor) -> Tensor:
    return torch.where(real, each.double(), 0.0).sum(-1)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    return labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)


def _others(scores: Tensor, place: int) -> Tensor:
    """log Σ exp of all scores but one: a score less this is the log-odds of its class."""
    return torch.cat([scores[..., :place], scores[..., place + 1 :]], -1).logsumexp(-1)


def _hits(held: Tensor, predicted: Tensor) -> dict[str, Tensor]:
    """True positives, positives and predicted positives of each class or label, (*lead, classes)."""
    parts = {"hits": held & predicted, "held": held, "predicted": predicted}
    return {name: part.sum(-2).double() for name, part in parts.items()}


def _histograms(odds: Tensor, positive: Tensor, real: Tensor) -> dict[str, Tensor]:
    """How many positive and negative rows of each class fall into each bin, (*lead, classes, BINS)."""
    # Narrow around 0, where the scores of a model that has hardly learnt are.
    place = torch.asinh(odds.double() / _LINEAR) / math.asinh(_RANGE / _LINEAR)
    bins = ((place + 1) * (BINS / 2)).nan_to_num().clamp(0, BINS - 1).long().mT
    shape = (*bins.shape[:-1], BINS)
    found = {}
    for name, rows in (("positives", positive), ("negatives", ~positive & real.unsqueeze(-1))):
        weights = rows.mT.double()
        found[name] = weights.new_zeros(shape).scatter_add_(-1, bins, weights)
    return found

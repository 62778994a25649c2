"""Scores of models on the rows of a client that joins after training: the run's loss and main metric."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sfedhp.config import Experiment
from sfedhp.data.newcomer import Newcomer
from sfedhp.nn.problems import CLASSIFICATION, PROBLEMS
from sfedhp.nn.row_losses import row_loss_of
from sfedhp.runs.counting import Counting
from sfedhp.runs.metrics import value_of

_ROWS_AT_ONCE = 1024  # to evaluate


def counting_of(experiment: Experiment, newcomer: Newcomer, outputs: int) -> Counting:
    """What is counted of the newcomer's rows: the run's loss and main metric, numbers in their own unit.

    Balanced class weights are those of the newcomer's own training rows.

    Args:
        experiment: the run's, with its loss.
        newcomer: its rows.
        outputs: of the run's models.

    Raises:
        InputError: the loss cannot be used.
    """
    problem = PROBLEMS[newcomer.problem]
    class_rows = np.bincount(newcomer.labels, minlength=outputs).tolist() if problem is CLASSIFICATION else []
    loss = row_loss_of(experiment.loss, problem, class_rows)
    scaling = newcomer.target_scaling
    return Counting(
        problem, (problem.main,), loss, 1.0 if scaling is None else torch.from_numpy(scaling.spread)
    )


class Evaluated(NamedTuple):
    """The main metric of a model on some rows, and its loss of a row."""

    value: float
    loss: float


def evaluate(model: nn.Module, inputs: Tensor, labels: Tensor, counting: Counting) -> Evaluated:
    """The figures of a model on rows (rows, *shape), in evaluation mode."""
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part) for part in torch.split(inputs, _ROWS_AT_ONCE)])
    return score(scores, labels, counting)


def score(scores: Tensor, labels: Tensor, counting: Counting) -> Evaluated:
    """The figures of scores (rows, outputs), computed in float64."""
    labels = labels.double() if labels.is_floating_point() else labels
    counts = counting.count(scores.double(), labels, torch.ones(len(scores), dtype=torch.bool)).counts
    return Evaluated(float(value_of(counting.metrics[0], counts)), float(counts.loss) / len(scores))

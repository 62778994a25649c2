"""Counts on a client's own rows, from which the cloud computes metrics. No row of data leaves a client."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.nn.problems import CLASSIFICATION
from sfedhp.nn.task import Task
from sfedhp.runs.build import Rows
from sfedhp.runs.counting import Counting, add
from sfedhp.runs.hints import SeenClasses
from sfedhp.runs.metrics import report_of

_AT_ONCE = 512  # rows


class Counted(NamedTuple):
    """What a client counts of a model on its rows."""

    report: Any  # for the server; see `report_of`
    classes: SeenClasses | None  # for the client's own status; None where no classes are predicted


def count(
    algorithm: Algorithm, model: tuple[Any, Tensor], task: Task, rows: Rows, counting: Counting
) -> Counted:
    """Count rows.

    Args:
        algorithm: which predicts.
        model: its parameters and running statistics.
        task: the client's.
        rows: the rows that count.
        counting: what is counted.
    """
    total = int(rows.sizes)
    parameters, statistics = model
    task = replace(task, statistics=statistics)
    parts, predicted = [], set[int]()
    for first in range(0, max(total, 1), _AT_ONCE):
        some = slice(first, min(first + _AT_ONCE, total))
        with torch.no_grad():
            scores = algorithm.predict(parameters, task, rows.inputs[some])
        labels = rows.labels[some]
        scored = counting.count(scores, labels, torch.ones(len(scores), dtype=torch.bool))
        parts.append(scored.counts._replace(loss=counting.loss(scores, labels).double().sum()))
        predicted.update(scored.predicted.flatten().tolist())
    report = report_of(reduce(add, parts))
    if counting.problem is not CLASSIFICATION:
        return Counted(report, None)
    return Counted(report, SeenClasses(set(rows.labels[:total].flatten().tolist()), predicted))

"""What a client counts on its own rows; the cloud computes the metrics. No row of data leaves a client."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.nn.task import Task
from sfedhp.runs.build import Rows
from sfedhp.runs.counting import Counting, add
from sfedhp.runs.metrics import report_of

_AT_ONCE = 512  # rows


def count(
    algorithm: Algorithm, parameters: Any, statistics: Tensor, task: Task, rows: Rows, counting: Counting
) -> Any:
    """What a client reports of a model on its rows: see `report_of`."""
    total = int(rows.sizes)
    task = replace(task, statistics=statistics)
    parts = []
    for first in range(0, max(total, 1), _AT_ONCE):
        some = slice(first, min(first + _AT_ONCE, total))
        with torch.no_grad():
            scores = algorithm.predict(parameters, task, rows.inputs[some])
        labels = rows.labels[some]
        counts = counting.count(scores, labels, torch.ones(len(scores), dtype=torch.bool)).counts
        parts.append(counts._replace(loss=counting.loss(scores, labels).double().sum()))
    return report_of(reduce(add, parts))

"""What a client counts on its own rows; the cloud computes the metrics. No row of data leaves a client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from sfedhp.algorithms.base import Algorithm
from sfedhp.nn.task import Task
from sfedhp.runs.build import Rows

_AT_ONCE = 512  # rows


def count(algorithm: Algorithm, parameters: Any, statistics: Tensor, task: Task, rows: Rows) -> list[float]:
    """Correct rows, rows, and summed loss of a model on a client's rows."""
    right, loss, total = 0, 0.0, int(rows.sizes)
    task = replace(task, statistics=statistics)
    for first in range(0, total, _AT_ONCE):
        labels = rows.labels[first : first + _AT_ONCE]
        with torch.no_grad():
            scores = algorithm.predict(parameters, task, rows.inputs[first : first + _AT_ONCE])
        each = -log_softmax(scores, -1).gather(-1, labels.unsqueeze(-1))
        right, loss = right + int((scores.argmax(-1) == labels).sum()), loss + float(each.double().sum())
    return [right, total, loss]

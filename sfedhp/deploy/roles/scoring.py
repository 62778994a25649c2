"""How good models are: counts at each client, figures at the cloud. No row of data leaves a client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from sfedhp.algorithms.base import Algorithm
from sfedhp.nn.task import Task
from sfedhp.runs.evaluation import KINDS, Rows

Counts = dict[str, list[float]]  # by kind of model: right, rows, summed loss
_AT_ONCE = 512  # rows


def count(algorithm: Algorithm, parameters: Any, statistics: Tensor, task: Task, rows: Rows) -> list[float]:
    """How many of a client's rows a model gets right, of how many, and its summed loss."""
    right, loss, total = 0, 0.0, int(rows.sizes)
    lent = replace(task, statistics=statistics)
    for first in range(0, total, _AT_ONCE):
        labels = rows.labels[first : first + _AT_ONCE]
        with torch.no_grad():
            scores = algorithm.predict(parameters, lent, rows.inputs[first : first + _AT_ONCE])
        each = -log_softmax(scores, -1).gather(-1, labels.unsqueeze(-1))
        right, loss = right + int((scores.argmax(-1) == labels).sum()), loss + float(each.double().sum())
    return [right, total, loss]


def figures(clients: Sequence[Mapping[str, Counts]]) -> dict[str, float]:
    """A round's figures, as columns of the history, of what each client counted on each set of its rows."""
    found: dict[str, float] = {}
    for kind in KINDS:
        test = [each["test"][kind] for each in clients if kind in each.get("test", {})]
        test = [counts for counts in test if counts[1]]
        if not test:
            continue
        rows = sum(counts[1] for counts in test)
        shares = sorted(100 * counts[0] / counts[1] for counts in test)
        macro = sum(shares) / len(shares)
        tenth = shares[: math.ceil(0.1 * len(shares))]
        found[kind] = 100 * sum(counts[0] for counts in test) / rows
        found[f"{kind}_macro"] = macro
        found[f"{kind}_spread"] = math.sqrt(sum((share - macro) ** 2 for share in shares) / len(shares))
        found[f"{kind}_worst"] = sum(tenth) / len(tenth)
        found[f"{kind}_loss"] = sum(counts[2] for counts in test) / rows
        held = [each["validation"][kind] for each in clients if kind in each.get("validation", {})]
        if sum(counts[1] for counts in held):
            right, rows = (sum(counts[index] for counts in held) for index in (0, 1))
            found[f"{kind}_validation"] = 100 * right / rows
    train = [each["train"]["loss"] for each in clients if "loss" in each.get("train", {})]
    if sum(counts[1] for counts in train):
        found["train_loss"] = sum(counts[2] for counts in train) / sum(counts[1] for counts in train)
    return found

"""The process that runs the rounds of a population."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sfedhp.algorithms import FedAvg
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.engine.population import KeyedRows, Population
from sfedhp.nn.models import build
from sfedhp.runs.environment import device_of

_POOL = 10_000  # rows; every client has some of them
_SHAPE, _CLASSES, _ROWS, _BATCH, _STEPS = (1, 28, 28), 10, 20, 10, 5


class Round:
    """A round of a population, for `worker.serve`."""

    def __init__(self, job: Mapping[str, Any]):
        keep_freed_memory()
        draw = torch.Generator().manual_seed(0)
        labels = torch.arange(_POOL) % _CLASSES
        inputs = torch.rand(_POOL, *_SHAPE, generator=draw) + 0.1 * labels.view(-1, 1, 1, 1)
        network = build(job["model"], shape=_SHAPE, classes=_CLASSES, seed=0, dtype=torch.float32)
        device = device_of(job["device"])
        network.module.to(device)
        rows = KeyedRows(inputs, labels, job["clients"], _ROWS, seed=0)
        method = FedAvg(local_steps=_STEPS, local_rate=0.05)
        self._population = Population(method, network, rows, job["cohort"], 0, _BATCH, device)
        self._rounds = self._population.run(10**9)
        self._turn = 0

    def __call__(self) -> None:
        """Run one cloud round of the population."""
        next(self._rounds)

    def accuracy(self) -> float:
        """How many clients a round samples. It samples them, so that the worker times that alone."""
        self._turn += 1
        return float(len(self._population.drawn(self._turn)))

"""The two sides of an arena that are part of this package: itself, and a plain loop over the clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from sfedhp.algorithms import FedAvg
from sfedhp.bench.arenas import Arena
from sfedhp.bench.client import Parameters, copied, mean
from sfedhp.bench.worker import accuracy_of
from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.core.types import Precision
from sfedhp.data import DataOptions
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.nn.precision import computing
from sfedhp.runs.prepare import prepare

_FOREVER = 10**9  # rounds


class Trainer(Protocol):
    """A side of an arena."""

    def __call__(self) -> object:
        """Run a round of training, without an evaluation."""

    def accuracy(self) -> float:
        """Percent of the test rows that the global model gets right."""


class Ours:
    """This package: FedAvg in its simulator."""

    def __init__(self, arena: Arena, file: Path, device: str, precision: Precision, at_once: int):
        self._simulator, self._test = simulation(arena, file, device, precision, at_once)
        self._states: Iterator[State] = self._simulator.run(_FOREVER)

    def __call__(self) -> None:
        """Run a round."""
        next(self._states)
        self._simulator.ledger.close()  # as after every round of a run, so that the ledger does not grow

    def accuracy(self) -> float:
        """Percent of the test rows that the global model gets right."""
        network, state = self._simulator.task.network, self._simulator.state
        module = network.build(state.served.state, state.served.statistics).to(self._test[0].device)
        return accuracy_of(module, self._test)


class Loop:
    """A plain loop over the clients: each has a module, an optimizer and a DataLoader."""

    def __init__(self, arena: Arena, file: Path, device: str, precision: Precision):
        with np.load(file) as data:
            inputs, labels = pixels(data["inputs"]), torch.from_numpy(data["labels"])
            self._test = (
                pixels(data["test_inputs"]).to(device),
                torch.from_numpy(data["test_labels"]).to(device),
            )
        held = (each.view(arena.clients, arena.rows, *each.shape[1:]) for each in (inputs, labels))
        self._loaders = [
            DataLoader(TensorDataset(*rows), arena.batch_size, shuffle=True)
            for rows in zip(*held, strict=True)
        ]
        self._arena, self._device, self._precision = arena, device, precision
        self._module = arena.network().to(device)
        self._model: Parameters = copied(self._module.parameters())
        self._draw = np.random.default_rng(0)

    def __call__(self) -> None:
        """Run a round."""
        arena, models = self._arena, []
        for client in self._draw.choice(arena.clients, arena.cohort, replace=False):
            self._hold(self._model)
            self._module.train()
            optimizer = torch.optim.SGD(self._module.parameters(), lr=arena.rate)
            with computing(self._precision, torch.device(self._device)):
                for _ in range(arena.epochs):
                    for inputs, labels in self._loaders[client]:
                        optimizer.zero_grad()
                        scores = self._module(inputs.to(self._device))
                        cross_entropy(scores, labels.to(self._device)).backward()  # type: ignore[no-untyped-call]
                        optimizer.step()
            models.append(copied(self._module.parameters()))
        self._model = mean(models, [1.0] * len(models))

    def accuracy(self) -> float:
        """Percent of the test rows that the global model gets right."""
        self._hold(self._model)
        return accuracy_of(self._module.eval(), self._test)

    def _hold(self, model: Parameters) -> None:
        for own, value in zip(self._module.parameters(), model, strict=True):
            own.data = value.clone()


def ours(job: Mapping[str, Any]) -> Trainer:
    """This package as a side, for `worker.serve`."""
    options = job["device"], job["precision"], job["at_once"]
    return Ours(_arena(job), Path(job["npz"]), *options)


def loop(job: Mapping[str, Any]) -> Trainer:
    """The plain loop as a side, for `worker.serve`."""
    return Loop(_arena(job), Path(job["npz"]), job["device"], job["precision"])


def _arena(job: Mapping[str, Any]) -> Arena:
    """The arena in a job; JSON turned its tuples into lists."""
    fields = job["arena"]
    return Arena(**{**fields, "shape": tuple(fields["shape"]), "layers": tuple(map(tuple, fields["layers"]))})


def simulation(
    arena: Arena, file: Path, device: str, precision: Precision, at_once: int = 0
) -> tuple[Simulator, tuple[Tensor, Tensor]]:
    """The simulator of an arena on the data in a file, and the test rows that its models are scored on."""
    with np.load(file) as data:
        held = {name: data[name] for name in data.files}
    # Every client of a federation has a row to test on; these are not scored here.
    one_each = np.arange(arena.clients) % len(held["test_labels"])
    rows = {
        "inputs": np.concatenate([held["inputs"], held["test_inputs"][one_each]]),
        "labels": np.concatenate([held["labels"], held["test_labels"][one_each]]),
        "client": np.concatenate([held["client"], np.arange(arena.clients)]),
        "test": np.arange(len(held["labels"]) + arena.clients) >= len(held["labels"]),
    }
    experiment = Experiment(
        edges=1,
        clients_per_edge=arena.clients,
        sampled_clients=arena.cohort if arena.cohort < arena.clients else 0,
        batch_size=arena.batch_size,
        device=device,
        algorithm=FedAvg(local_rate=arena.rate, local_epochs=arena.epochs),
        data=DataOptions(scale="unit"),
        engine=EngineOptions(precision=precision, clients_at_once=at_once),
    )
    prepared = prepare(experiment, rows, arena.network)
    on = prepared.simulator.initial.device
    test = pixels(held["test_inputs"]).to(on), torch.from_numpy(held["test_labels"]).to(on)
    return prepared.simulator, test


def pixels(images: np.ndarray[Any, Any]) -> Tensor:
    """uint8 images as float32 from 0 to 1."""
    return torch.from_numpy(images).float().div_(255)

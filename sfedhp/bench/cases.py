"""The measured cases: a method on a model, and the synthetic data that every side gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sfedhp.algorithms import ALGORITHMS
from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions

CLASSES = 10
_LABELS_PER_CLIENT = 2
_AT_ONCE = 200  # clients computed together: what they need stays near the processor
_LIT = 0.2  # the share of pixels that are not black, about MNIST's


@dataclass(frozen=True)
class Case:
    """A method on a model; other fields have the paper's setting by default."""

    method: str  # a name of ALGORITHMS, with its default options: R = 20, K = 5, γ = 0
    model: str  # a name of MODELS
    device: str = "cpu"
    edges: int = 4
    clients_per_edge: int = 5
    rows: int = 400  # training rows of a client
    batch_size: int = 20  # 0: all rows
    runs: int = 1  # stacked, with seeds 0, 1, …
    dtype: str = "float32"

    @property
    def clients(self) -> int:
        """The number of clients under all edges."""
        return self.edges * self.clients_per_edge

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image: CIFAR-10's for convolutional networks, else MNIST's."""
        return (3, 32, 32) if self.model.startswith("vgg") else (28, 28)

    def experiments(self, source: Path) -> list[Experiment]:
        """The runs, on the data in this file."""
        return [
            Experiment(
                seed=seed,
                edges=self.edges,
                clients_per_edge=self.clients_per_edge,
                batch_size=self.batch_size,
                dtype="float64" if self.dtype == "float64" else "float32",
                device=self.device,
                algorithm=ALGORITHMS[self.method](),
                data=DataOptions(source=str(source)),
                model=ModelOptions(name=self.model),
                engine=EngineOptions(clients_at_once=_AT_ONCE),
            )
            for seed in range(self.runs)
        ]

    def write_data(self, path: Path) -> None:
        """Write an npz of uint8 images, two labels a client; one row a client is for testing.

        Speed does not depend on what images show. These have some structure, so that training neither stops
        nor diverges.
        """
        draw = np.random.default_rng(0)
        client = np.repeat(np.arange(self.clients), self.rows + 1)
        turn = np.tile(np.arange(self.rows + 1), self.clients)
        labels = (client + turn % _LABELS_PER_CLIENT) % CLASSES
        typical = draw.integers(0, 192, (CLASSES, *self.shape), dtype=np.uint8)
        typical *= draw.random(typical.shape) < _LIT
        inputs = draw.integers(0, 64, (len(labels), *self.shape), dtype=np.uint8)
        inputs += typical[labels]
        np.savez(path, inputs=inputs, labels=labels, client=client, test=turn == self.rows)

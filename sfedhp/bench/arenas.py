"""Workloads for which other projects publish their speed, with their protocol, data and network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sfedhp.core.errors import InputError
from sfedhp.data.registry import IMAGE_SETS, data_folder, read_images

CLASSES: Final = 10
_TEST_ROWS: Final = 10_000  # of every image set, at its end
_SYNTHETIC_TEST_ROWS: Final = 1_000
Layers = tuple[tuple[Any, ...], ...]  # the name of a class of torch.nn, then its arguments

_LINEAR: Final[Layers] = (("Flatten",), ("Linear", 784, CLASSES))
_PFL: Final[Layers] = (
    *(("Conv2d", 3, 32, 3), ("ReLU",), ("Conv2d", 32, 64, 3), ("ReLU",), ("MaxPool2d", 2), ("Dropout", 0.25)),
    *(("Flatten",), ("Linear", 12544, 128), ("ReLU",), ("Dropout", 0.5), ("Linear", 128, CLASSES)),
)
_LENET: Final[Layers] = (
    *(("Conv2d", 3, 6, 5), ("ReLU",), ("MaxPool2d", 2), ("Conv2d", 6, 16, 5), ("ReLU",), ("MaxPool2d", 2)),
    *(("Flatten",), ("Linear", 400, 120), ("ReLU",), ("Linear", 120, 84), ("ReLU",), ("Linear", 84, CLASSES)),
)
_FEDAVG_CNN: Final[Layers] = (
    *(("Conv2d", 1, 32, 5), ("ReLU",), ("MaxPool2d", 2), ("Conv2d", 32, 64, 5), ("ReLU",), ("MaxPool2d", 2)),
    *(("Flatten",), ("Linear", 1024, 512), ("ReLU",), ("Linear", 512, CLASSES)),
)


@dataclass(frozen=True)
class Arena:
    """A FedAvg workload on images: sizes of the clients, how they train, and for how many rounds."""

    name: str
    source: str  # a name of IMAGE_SETS
    shape: tuple[int, int, int]
    layers: Layers
    clients: int
    rows: int  # training rows of a client
    cohort: int  # clients of a round
    rounds: int  # of a whole run
    epochs: int
    batch_size: int
    rate: float
    evaluation_every: int  # rounds, on all test rows
    shards: int = 0  # shards per client of the rows sorted by label; 0: rows are assigned at random

    def network(self) -> nn.Module:
        """The network with Glorot's initial weights and biases of zero, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(*(getattr(nn, kind)(*arguments) for kind, *arguments in self.layers))
            for part in module.modules():
                if isinstance(part, nn.Conv2d | nn.Linear):
                    nn.init.xavier_uniform_(part.weight)
                    assert part.bias is not None
                    nn.init.zeros_(part.bias)
        return module

    def write_data(self, path: Path, synthetic: bool) -> None:
        """Write an npz: `inputs`, `labels` and `client` to train with, `test_inputs` and `test_labels`.

        Raises:
            InputError: the image set is not there, or is too small.
        """
        wanted = self.clients * self.rows
        images, labels = self._made_up(wanted) if synthetic else self._real()
        tests = _SYNTHETIC_TEST_ROWS if synthetic else _TEST_ROWS
        if len(labels) - tests < wanted:
            raise InputError(f"{self.source} has fewer than the {wanted} training rows of {self.name}.")
        draw = np.random.default_rng(0)
        order = draw.permutation(len(labels) - tests)[:wanted]
        if self.shards:
            order = order[np.argsort(labels[order], kind="stable")]
            pieces = np.array_split(order, self.clients * self.shards)
            order = np.concatenate([pieces[place] for place in draw.permutation(len(pieces))])
        np.savez(
            path,
            inputs=images[order],
            labels=labels[order],
            client=np.repeat(np.arange(self.clients), self.rows),
            test_inputs=images[-tests:],
            test_labels=labels[-tests:],
        )

    def _real(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        pool = read_images(IMAGE_SETS[self.source], data_folder())
        return pool.inputs.reshape(-1, *self.shape), pool.labels

    def _made_up(self, wanted: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Noise over a pattern of each class, so that training neither stops nor diverges."""
        draw = np.random.default_rng(0)
        labels = np.arange(wanted + _SYNTHETIC_TEST_ROWS) % CLASSES
        patterns = draw.integers(0, 128, (CLASSES, *self.shape), dtype=np.uint8)
        images = draw.integers(0, 128, (len(labels), *self.shape), dtype=np.uint8)
        images += patterns[labels]
        return images, labels


ARENAS: Final = {
    arena.name: arena
    for arena in (
        # pfl-research, benchmarks/image_classification: CIFAR-10, IID
        Arena("pfl-cifar10", "cifar10", (3, 32, 32), _PFL, 1000, 50, 50, 1500, 1, 10, 0.1, 10),
        # FLUTE, experiments/mlr_mnist: logistic regression
        Arena("flute-lr-mnist", "mnist", (1, 28, 28), _LINEAR, 1000, 60, 10, 100, 1, 10, 0.03, 20),
        # BlazeFL, examples/quickstart-fedavg: all clients in every round, two shards each
        Arena("blazefl", "cifar10", (3, 32, 32), _LENET, 100, 500, 100, 5, 5, 50, 0.1, 1, shards=2),
        # PFLlib, its CNN on Fashion-MNIST: 20 clients with three quarters of 3500 rows
        Arena("pfllib-cnn", "fmnist", (1, 28, 28), _FEDAVG_CNN, 20, 2625, 20, 2000, 1, 10, 0.005, 1),
    )
}

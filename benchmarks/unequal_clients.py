"""One pass over the rows of clients of unequal size: in groups of like size, together, and as a plain loop.

    python benchmarks/unequal_clients.py

Twenty clients with the sizes of PFLlib's Fashion-MNIST, two labels each, divided by 60; batches of 10, one
thread, CPU seconds, the least of three.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sfedhp.core.factored import dense
from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.inner import minimize as inner
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task

SIZES = (
    *(1737, 975, 1719, 6068, 1544, 751, 1419, 6784, 2199, 1431),
    *(1923, 4945, 1749, 1443, 750, 6557, 1434, 1262, 2337, 5466),
)
BATCH, RATE, REPEATS, SHARE = 10, 0.05, 3, 60
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlr": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "dnn": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)),
    "cnn": lambda: nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
    ),
}


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds, the least of some."""
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def loop(module: nn.Module, inputs: Tensor, labels: Tensor, sizes: Tensor) -> None:
    """What anybody would write."""
    for client, size in enumerate(sizes.tolist()):
        optimizer = torch.optim.SGD(module.parameters(), RATE)
        for rows in torch.split(torch.randperm(size), BATCH):
            optimizer.zero_grad()
            cross_entropy(module(inputs[client, rows]), labels[client, rows]).backward()
            optimizer.step()


def main() -> None:
    """Print a line for each model."""
    torch.set_num_threads(1)
    sizes = torch.tensor(SIZES) // SHARE
    inputs = torch.randn(len(sizes), int(sizes.max()), 1, 28, 28)
    labels = torch.randint(10, inputs.shape[:2])
    print(f"{'model':8}{'groups':>10}{'together':>10}{'loop':>10}")
    for name, make in MODELS.items():
        module = make()
        network = Network(module)
        task = Task(network, inputs, labels, sizes, key(1, torch.arange(len(sizes))), BATCH)
        anchor = network.initial()[0].expand(len(sizes), -1)
        descent = inner.Descent(1, RATE, new_batch_each_step=True, epochs=1)

        def epoch(task: Task = task, anchor: Tensor = anchor, descent: inner.Descent = descent) -> Tensor:
            return dense(inner.minimize(task, Clock(0), anchor, descent))

        grouped = seconds(epoch)
        with patch.object(inner, "groups_of_like_size", lambda *_: []):
            together = seconds(epoch)
        plain = seconds(lambda module=module: loop(module, inputs, labels, sizes))
        print(f"{name:8}{grouped:10.2f}{together:10.2f}{plain:10.2f}")


if __name__ == "__main__":
    main()

"""One pass over the rows of clients of unequal size: in stages, together, and as a plain loop.

    python benchmarks/unequal_clients.py

In stages, a client that is done leaves the stack; together, it waits for the largest one. Twenty clients with
the sizes of PFLlib's Fashion-MNIST, two labels each, divided by 60; batches of 10, one thread, CPU
milliseconds, the least of five, in turn. A ratio above 1 says how many times as long the loop takes as the
stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from timing import duration
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sfedhp.core.factored import dense
from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.epochs import Epochs
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task

SIZES = (
    *(1737, 975, 1719, 6068, 1544, 751, 1419, 6784, 2199, 1431),
    *(1923, 4945, 1749, 1443, 750, 6557, 1434, 1262, 2337, 5466),
)
BATCH, RATE, REPEATS, SHARE = 10, 0.05, 5, 60
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlr": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "dnn": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)),
    "cnn": lambda: nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
    ),
}


def milliseconds(work: Callable[[], object]) -> float:
    """CPU milliseconds of a piece of work."""
    return 1e3 * duration(work, time.process_time)


def loop(module: nn.Module, inputs: Tensor, labels: Tensor, sizes: Tensor) -> None:
    """The plain loop: an optimizer for each client, and a backward pass for each mini-batch."""
    for client, size in enumerate(sizes.tolist()):
        optimizer = torch.optim.SGD(module.parameters(), RATE)
        for rows in torch.split(torch.randperm(size), BATCH):
            optimizer.zero_grad()
            cross_entropy(module(inputs[client, rows]), labels[client, rows]).backward()
            optimizer.step()


def main() -> None:
    """Print a line for each model."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as runs do; the loop has it too
    sizes = torch.tensor(SIZES) // SHARE
    inputs = torch.randn(len(sizes), int(sizes.max()), 1, 28, 28)
    labels = torch.randint(10, inputs.shape[:2])
    print(f"{'model':8}{'stages':>10}{'together':>10}{'loop':>10}{'ratio':>10}")
    for name, make in MODELS.items():
        module = make()
        network = Network(module)
        task = Task(network, inputs, labels, sizes, key(1, torch.arange(len(sizes))), BATCH)
        anchor = network.initial()[0].expand(len(sizes), -1)
        descent = Descent(1, RATE, new_batch_each_step=True, epochs=1)

        def epoch(task: Task = task, anchor: Tensor = anchor, descent: Descent = descent) -> Tensor:
            return dense(minimize(task, Clock(0), anchor, descent))

        turns = []
        for _ in range(REPEATS):
            with patch.object(Epochs, "stages", lambda *_: []):
                together = milliseconds(epoch)
            plain = partial(loop, module, inputs, labels, sizes)
            turns.append((milliseconds(epoch), together, milliseconds(plain)))
        apart, together, plain_loop = map(min, zip(*turns, strict=True))
        print(f"{name:8}{apart:10.1f}{together:10.1f}{plain_loop:10.1f}{plain_loop / apart:10.2f}")


if __name__ == "__main__":
    main()

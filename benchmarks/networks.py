"""Local steps of a stack of clients on any network, against a loop over the clients.

python benchmarks/networks.py
python benchmarks/networks.py --models cnn,lstm --clients 20 --threads 1 --json
python benchmarks/networks.py --device cuda --precision tf32
python benchmarks/networks.py --record results/bench/networks-cpu.json

The loop has a module and an optimizer for each client, and gets its mini-batches ready-made: what is
compared is the arithmetic alone. Both sides take the same number of SGD steps from one model on the same
rows, in turn, after warm-ups. On a CPU, CPU seconds are counted. A ratio above 1 says how many times as
long the loop takes.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from timing import duration
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sfedhp.bench.arena import circumstances, write_record
from sfedhp.bench.worker import seconds_of
from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.engine.memory import keep_freed_memory
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.network import Network
from sfedhp.nn.precision import computing
from sfedhp.nn.presets import MODELS, Summary
from sfedhp.nn.task import Task
from sfedhp.runs.environment import device_of

CLASSES = 10


class Transformer(nn.Module):
    """Tokens, two layers of attention, their mean, and a head."""

    def __init__(self, words: int = 100, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores of each row, from the mean over its positions."""
        scores: Tensor = self.head(self.encoder(self.embedding(tokens)).mean(1))
        return scores


class Gated(nn.Module):
    """The last output of a GRU, and a head."""

    def __init__(self, features: int = 28, hidden: int = 64):
        super().__init__()
        self.gru = nn.GRU(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        """Scores of each row."""
        scores: Tensor = self.head(self.gru(series)[0][:, -1])
        return scores


def lenet(dropout: float = 0.0) -> nn.Module:
    """Two convolutions of 5 × 5 (6 and 16 channels) and layers of 120 and 84, as BlazeFL has it."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


IMAGES, COLORS, SERIES, WORDS = (1, 28, 28), (3, 32, 32), (28, 28), (16,)
NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "mlr": (IMAGES, lambda: MODELS["mlr"](IMAGES, CLASSES)),
    "dnn-small": (IMAGES, lambda: MODELS["dnn-small"](IMAGES, CLASSES)),
    "lenet": (IMAGES, lenet),
    "lenet-dropout": (IMAGES, lambda: lenet(0.5)),
    "cnn": (IMAGES, lambda: MODELS["cnn"](IMAGES, CLASSES)),
    "cnn-colors": (COLORS, lambda: MODELS["cnn"](COLORS, CLASSES)),
    "vgg": (COLORS, lambda: MODELS["vgg"](COLORS, CLASSES)),
    "resnet-gn": (COLORS, lambda: MODELS["resnet-gn"](COLORS, CLASSES)),
    "lstm-small": (SERIES, lambda: nn.Sequential(Summary(28, 8), nn.Linear(8, CLASSES))),
    "lstm": (SERIES, lambda: MODELS["lstm"](SERIES, CLASSES)),
    "gru": (SERIES, Gated),
    "transformer-small": (WORDS, lambda: Transformer(width=16)),
    "transformer": (WORDS, Transformer),
}


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=0, help="clients of the stack together; 0: all")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="float32")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", type=Path, help="also write all rows as JSON, with machine and date")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()  # as runs do; the loop has it too
    rows = []
    for name in given.models.split(","):
        row = measure(name, given)
        rows.append(row)
        if given.json:
            print(json.dumps(row), flush=True)
        else:
            print(
                f"{name:<14} {row['weights']:>9,} weights  stack {1e3 * row['seconds']:8.1f} ms  "
                f"loop {1e3 * row['loop_seconds']:8.1f} ms  ratio {row['ratio']:5.2f}  "
                f"difference {row['difference']:.0e}  {row['path']}",
                flush=True,
            )
    if given.record:
        write_record({**circumstances(given.device), "networks": rows}, given.record)


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Both sides of a network, in turn."""
    shape, make = NETWORKS[name]
    torch.manual_seed(0)
    device, clients, rows = device_of(given.device), given.clients, given.batch_size
    module = make().to(device)
    if shape == WORDS:
        inputs = torch.randint(0, 100, (clients, rows, *shape)).to(device)
    else:
        inputs = torch.rand(clients, rows, *shape).to(device)
    labels = torch.randint(0, CLASSES, (clients, rows)).to(device)
    network = Network(module)
    sizes = torch.full((clients,), rows, device=device)
    stream = key(torch.arange(clients)).to(device)
    task = Task(network, inputs, labels, sizes, stream, rows, min_rows=rows, classes=CLASSES)
    model = network.initial()[0].to(device)
    statistics = network.initial()[1].to(device).expand(clients, network.s).clone()
    descent = Descent(given.steps, 0.05, new_batch_each_step=True)
    width = given.at_once or clients
    ends: list[Tensor] = []

    def stack() -> None:
        ends.clear()
        for first in range(0, clients, width):
            some = task.map(lambda tensor, first=first: tensor[first : first + width])
            some.statistics = statistics[first : first + width]
            anchor = model.expand(len(some.sizes), -1)
            ends.append(minimize(some, Clock(0), anchor, descent))  # type: ignore[arg-type]

    modules = [copy.deepcopy(module) for _ in range(clients)]

    def loop() -> None:
        for own, mine, targets in zip(modules, inputs, labels, strict=True):
            own.load_state_dict(module.state_dict())
            optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
            for _ in range(given.steps):
                optimizer.zero_grad()
                cross_entropy(own(mine), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    with computing(given.precision, device):
        times: dict[str, list[float]] = {"stack": [], "loop": []}
        for turn in range(given.pairs + 1):
            for side, work in (("stack", stack), ("loop", loop)):
                on_cpu = given.device == "cpu"
                seconds = duration(work, time.process_time) if on_cpu else seconds_of(work, given.device)
                if turn:
                    times[side].append(seconds)
    theirs = torch.stack([torch.cat([part.flatten() for part in own.parameters()]) for own in modules])
    own, other = (median(times[side]) for side in ("stack", "loop"))
    return {
        "model": name,
        "weights": network.d,
        "clients": clients,
        "steps": given.steps,
        "batch_size": rows,
        "threads": given.threads,
        "device": given.device,
        "precision": given.precision,
        "path": str(task.gradient_path),
        "seconds": own,
        "loop_seconds": other,
        "ratio": other / own,
        "difference": float((torch.cat(ends) - theirs.detach()).abs().max()),
    }


if __name__ == "__main__":
    main()

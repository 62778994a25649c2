"""A run that takes milliseconds, data and a method for it, and how to stop one."""

import json
from dataclasses import dataclass

import numpy as np

from sfedhp import Experiment
from sfedhp.algorithms import Algorithm, ClientResult, SFedHP
from sfedhp.core.options import Rate
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions

SMALL = Experiment(
    rounds=3,
    edges=2,
    clients_per_edge=3,
    dtype="float64",
    algorithm=SFedHP(edge_rounds=2),
    data=DataOptions(train_per_label=6, test_per_label=5, validation_per_label=2),
    model=ModelOptions(name="mlr"),
)

# With mini-batches, and rows enough for noise that hides one of them.
TO_PROTECT = Experiment(
    rounds=3,
    edges=2,
    clients_per_edge=3,
    batch_size=8,
    data=DataOptions(train_per_label=24, test_per_label=4, validation_per_label=0, partition="iid"),
    model=ModelOptions(name="mlr"),
    algorithm=SFedHP(edge_rounds=2, personal_steps=1),
)


@dataclass(frozen=True)
class Mine(Algorithm):
    """A user's own method: a gradient step."""

    rate: Rate = 0.1

    def client_step(self, received, personal, task, clock):
        return ClientResult(received - self.rate * task.gradient(received, task.batch(clock)))


@dataclass(frozen=True)
class Bare(Algorithm):
    """A method whose client step returns the model without the `ClientResult`."""

    def client_step(self, received, personal, task, clock):
        return received


def arrays(seed=0, rows=60, clients=6):
    """Rows of three classes, dealt to clients in turn."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, rows)
    inputs = generator.normal(size=(rows, 4)) + labels[:, None]
    return {"inputs": inputs, "labels": labels, "client": np.arange(rows) % clients}


def after(rounds):
    """A stop that says so when it is asked for this time."""
    asked = []

    def stop():
        asked.append(1)
        return len(asked) >= rounds

    return stop


def remove_checksums_of_scores(folder):
    """Make the tables of a run as an earlier version wrote them, so that a test can edit them."""
    path = folder / "confusion.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: each for name, each in content.items() if "checksum" not in name}))

"""The two sides of every measurement that are part of this package: itself, and the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfedhp.bench.loop import Loop
from sfedhp.bench.loop import loop as federation_of_clients
from sfedhp.config import Experiment, from_dict
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.nn.models import build
from sfedhp.runs.environment import device_of
from sfedhp.runs.prepare import prepare, prepare_stack

Round = Callable[[], object]
_FOREVER = 10**9  # rounds


class Stacked(NamedTuple):
    """The training rows of all clients, as one stack."""

    inputs: Tensor  # (edges, clients, rows, *shape)
    labels: Tensor  # (edges, clients, rows)


def ours(job: Mapping[str, Any]) -> Round:
    """A round of the simulator, of one run or of a stack of them."""
    simulator = simulation([from_dict(config) for config in job["configs"]])
    states: Iterator[State] = simulator.run(_FOREVER)

    def step() -> None:
        next(states)
        simulator.ledger.close()  # as after every round of a run, so that the ledger does not grow

    return step


def loop(job: Mapping[str, Any]) -> Round:
    """A round of the plain loop."""
    return plain(from_dict(job["configs"][0])).round


def simulation(experiments: list[Experiment]) -> Simulator:
    """The simulator of one experiment, or of a stack."""
    prepared = prepare(experiments[0]) if len(experiments) == 1 else prepare_stack(experiments)
    return prepared.simulator


def plain(experiment: Experiment) -> Loop:
    """The plain loop on the same data, from the same initial weights."""
    rows = stacked(experiment)
    classes = int(rows.labels.max()) + 1
    network = build(
        experiment.model.name,
        shape=rows.inputs.shape[3:],
        classes=classes,
        seed=experiment.seed,
        dtype=rows.inputs.dtype,
        features=experiment.algorithm.predicts_from_features,
    )
    return federation_of_clients(
        experiment.algorithm,
        network.module.to(device_of(experiment.device)),
        *rows,
        batch_size=experiment.batch_size,
        classes=classes,
        seed=experiment.seed,
    )


def stacked(experiment: Experiment) -> Stacked:
    """The training rows of a file that `Case.write_data` wrote; pixels become 0 to 1."""
    with np.load(Path(experiment.data.source)) as file:
        train = ~file["test"]
        inputs, labels = file["inputs"][train], file["labels"][train]
    lead = (experiment.edges, max(experiment.edge_sizes), -1)
    pixels = torch.from_numpy(inputs).to(experiment.torch_dtype).div_(255)
    return Stacked(pixels.view(*lead, *inputs.shape[1:]), torch.from_numpy(labels).view(lead))

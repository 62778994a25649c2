"""From an experiment to a simulator: load, divide, stack, build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sfedhp.config import Experiment
from sfedhp.data import Federation, federate, from_arrays, from_dataset
from sfedhp.evaluation import Evaluator, Rows
from sfedhp.keys import ROLES, key
from sfedhp.memory import clients_that_fit
from sfedhp.models import build, load_initial
from sfedhp.simulator import Simulator
from sfedhp.tasks import Task
from sfedhp.types import InputError
from sfedhp.wire.links import Link

Data = Federation | Mapping[str, Any] | Dataset[Any]
Model = nn.Module | Callable[..., nn.Module]

DIRECTIONS = ("client_edge", "edge_client", "edge_cloud", "cloud_edge", "client_cloud", "cloud_client")


@dataclass(frozen=True)
class Prepared:
    """An experiment ready to run."""

    experiment: Experiment  # with everything resolved
    federation: Federation
    simulator: Simulator
    evaluator: Evaluator


def prepare(experiment: Experiment, data: Data | None = None, model: Model | None = None) -> Prepared:
    """Load the data, build the network and stack the clients.

    Args:
        experiment: what to run.
        data: instead of `experiment.data.source`: a `Federation`, a mapping of arrays named as in an npz
            (`inputs`, `labels`, optionally `client` and `test`), or a torch `Dataset` of (input, label).
        model: instead of `experiment.model.name`: a module, or a function that makes one.
    """
    device = device_of(experiment.device)
    federation, experiment = federation_of(experiment, data)
    dtype = getattr(torch, experiment.dtype)
    network = build(
        experiment.model.name if model is None else model,
        shape=federation.inputs.shape[1:],
        classes=federation.classes,
        seed=experiment.seed,
        dtype=dtype,
        features=experiment.algorithm.features,
    )
    sample = torch.from_numpy(federation.scaled(federation.train[0][:2], experiment.dtype))
    sample = sample if len(sample) == 2 else sample.expand(2, *sample.shape[1:])
    network.probe(sample, None if experiment.algorithm.features else federation.classes)
    network.module.to(device)
    initial, tail = (part.to(dtype) for part in network.initial())
    if experiment.model.initial:
        initial, tail = load_initial(network, Path(experiment.model.initial), dtype)
    ids = torch.from_numpy(federation.seats)
    train = _stack(federation, federation.train, experiment.dtype, device)
    clients = experiment.edges * experiment.clients_per_edge
    edges = experiment.edges if experiment.algorithm.tiers == 3 else 1
    rows = experiment.batch_size or train.labels.shape[-1]
    fit = clients_that_fit(network, sample[:1].to(device), min(rows, train.labels.shape[-1]), edges)
    task = Task(
        network,
        *train,
        key(experiment.seed, ROLES["client"], ids).to(device),
        experiment.batch_size,
        experiment.model.weight_decay,
        ragged=len({len(rows) for rows in federation.train}) > 1 or bool((federation.seats < 0).any()),
    )
    simulator = Simulator(
        experiment.algorithm,
        task,
        ids.to(device),
        initial.to(device),
        tail.to(device),
        key(experiment.seed, ROLES["draw"]).to(device),
        sampled=experiment.sampled_edges if experiment.algorithm.tiers == 3 else experiment.sampled_clients,
        links={direction: Link(experiment.wire.threshold) for direction in DIRECTIONS},
        clients_at_once=experiment.engine.clients_at_once or (fit if fit * edges < clients else 0),
    )
    validation = _stack(federation, federation.validation, experiment.dtype, device)
    evaluator = Evaluator(
        simulator,
        _arranged(simulator, _stack(federation, federation.test, experiment.dtype, device)),
        _arranged(simulator, validation) if validation.labels.shape[-1] else None,
        experiment.evaluation,
        experiment.density_threshold,
    )
    return Prepared(experiment, federation, simulator, evaluator)


def federation_of(experiment: Experiment, data: Data | None = None) -> tuple[Federation, Experiment]:
    """Who holds what, and the experiment with its data options resolved."""
    layout: dict[str, Any] = {
        "edges": experiment.edges,
        "clients_per_edge": experiment.clients_per_edge,
        "seed": experiment.seed,
    }
    if data is None:
        federation, options = federate(experiment.data, **layout)
    elif isinstance(data, Federation):
        federation, options = data, replace(experiment.data, source="arrays")
    elif isinstance(data, Mapping):
        federation, options = from_arrays(
            data["inputs"],
            data["labels"],
            client=data.get("client"),
            test=data.get("test"),
            options=experiment.data,
            **layout,
        )
    else:
        federation, options = from_dataset(data, options=experiment.data, **layout)
    return federation, replace(experiment, data=options)


def device_of(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU where there is one.

    Raises:
        InputError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device = {name!r} is not available here: use cpu, or auto.") from None
    return device


def _arranged(simulator: Simulator, rows: Rows) -> Rows:
    return Rows(*(simulator.arrange(tensor) for tensor in rows))


def _stack(federation: Federation, held: Sequence[Any], dtype: str, device: torch.device) -> Rows:
    """The rows each client holds, padded to the longest: (edges, clients_per_edge, rows, *shape)."""
    seats = federation.seats
    sizes = np.array([[len(held[client]) if client >= 0 else 0 for client in edge] for edge in seats])
    width = int(sizes.max())
    inputs = np.zeros((*seats.shape, width, *federation.inputs.shape[1:]), dtype)
    labels = np.zeros((*seats.shape, width), np.int64)
    for (edge, seat), client in np.ndenumerate(seats):
        if client >= 0:
            rows = held[int(client)]
            inputs[edge, seat, : len(rows)] = federation.scaled(rows, dtype)
            labels[edge, seat, : len(rows)] = federation.labels[rows]
    tensors: list[Tensor] = [torch.from_numpy(array).to(device) for array in (inputs, labels, sizes)]
    return Rows(*tensors)

"""The package's simulator on the reference's small federations, and the models it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sfedhp.algorithms import Algorithm
from sfedhp.core.factored import dense
from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.engine.simulator import Simulator
from sfedhp.nn import network as networks
from sfedhp.nn.presets import mlp
from sfedhp.nn.task import Task
from tests.reference.networks import Network, Rows, Softmax, Vector

GARBAGE = 7.0  # in padded rows: code that reads them is found out


class Models(NamedTuple):
    """The models after the last round, as NumPy arrays; None where a method has none."""

    model: Vector | None  # w
    edge_models: Vector | None  # w_i, (edges, d), as they are uploaded
    edge_personals: Vector | None  # φ_i, (edges, d)
    personals: list[Vector] | None  # θ_ij, client after client; empty seats left out


def simulator(
    algorithm: Algorithm,
    network: Network,
    edges: Sequence[Sequence[Rows]],
    initial: Vector,
    *,
    batch_size: int = 0,
    seed: int = 0,
    **options: Any,
) -> Simulator:
    """The federation stacked (edges, clients), shorter clients padded, shorter edges with empty seats."""
    task = _task(network, edges, seed, batch_size)
    return Simulator(
        algorithm,
        task,
        ids=torch.arange(task.sizes.numel()).reshape(task.lead),
        initial=torch.from_numpy(initial),
        statistics=torch.zeros(0, dtype=torch.float64),
        stream=key(seed, 1),
        **options,
    )


def finish(simulator: Simulator, rounds: int) -> Models:
    """Run to the end and read off every model."""
    for state in simulator.run(rounds):
        after = state
    algorithm = simulator.algorithm
    edge_models = edge_personals = None
    if after.edges is not None:
        edge_models = algorithm.edge_upload(after.edges.state)[..., : simulator.task.network.d]
        edge_personals = algorithm.edge_model(after.edges.state)
    clock = Clock(rounds)
    personals = algorithm.personalize(simulator.received(), after.personal, simulator.task, clock)
    if personals is not None:
        personals = list(dense(personals)[simulator.task.sizes > 0].numpy())
    shared = algorithm.global_model(after.served.state)
    return Models(_numpy(shared), _numpy(edge_models), _numpy(edge_personals), personals)


def simulate(
    algorithm: Algorithm,
    network: Network,
    edges: Sequence[Sequence[Rows]],
    initial: Vector,
    rounds: int,
    **options: Any,
) -> Models:
    """Every model after this many rounds."""
    return finish(simulator(algorithm, network, edges, initial, **options), rounds)


def drawn(simulator: Simulator, rounds: int) -> list[list[bool]] | None:
    """Who is drawn in which round, for the reference to draw the same."""
    masks = [simulator.draw(turn) for turn in range(rounds)]
    return None if masks[0] is None else [mask.tolist() for mask in masks if mask is not None]


def _task(network: Network, edges: Sequence[Sequence[Rows]], seed: int, batch_size: int) -> Task:
    seats = max(map(len, edges))
    width = max(len(rows.labels) for clients in edges for rows in clients)
    inputs = torch.full((len(edges), seats, width, network.features), GARBAGE, dtype=torch.float64)
    labels = torch.zeros(len(edges), seats, width, dtype=torch.int64)
    sizes = torch.zeros(len(edges), seats, dtype=torch.int64)
    for edge, clients in enumerate(edges):
        for seat, rows in enumerate(clients):
            count = len(rows.labels)
            inputs[edge, seat, :count] = torch.from_numpy(rows.inputs)
            labels[edge, seat, :count] = torch.from_numpy(rows.labels)
            sizes[edge, seat] = count
    return Task(
        networks.Network(_module(network).double()),
        inputs,
        labels,
        sizes,
        stream=key(seed, torch.arange(sizes.numel()).reshape(sizes.shape)),
        batch_size=batch_size,
        weight_decay=network.weight_decay,
    )


def _module(network: Network) -> nn.Module:
    hidden = () if isinstance(network, Softmax) else (network.hidden,)
    return mlp(*hidden)((network.features,), network.classes)


def _numpy(tensor: Tensor | None) -> np.ndarray[Any, Any] | None:
    return None if tensor is None else tensor.numpy()

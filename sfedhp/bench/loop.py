"""Every method as a plain loop, one client after the other: what `sfedhp bench` measures against.

Every client owns a module, an optimizer and a DataLoader; a server walks over its clients and adds up their
parameters. Proximal steps are written as the pFedMe code writes them. Nothing is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sfedhp.algorithms import (
    ALGORITHMS,
    Algorithm,
    FedAvg,
    FedAvgTuned,
    FedProx,
    HeurFedAMP,
    HierFAVG,
    KNNPer,
    PerFedAvg,
    PFedGP,
    PFedMe,
    SFedHP,
    SFedHPPlus,
)
from sfedhp.bench.client import Client, Parameters, copied, mean, towards
from sfedhp.bench.loop_today import CONTROLLED, UPLOADS
from sfedhp.core.keys import ROLES, choose, key
from sfedhp.core.scalars import number
from sfedhp.gaussian.classifier import predictive_loss


@dataclass
class Loop:
    """A federation of edges and their clients that trains one client after the other."""

    algorithm: Algorithm
    edges: list[list[Client]]
    model: Parameters  # the cloud's
    streams: Tensor  # (edges, clients) the keys of what pFedGP draws
    classes: int
    members: list[Parameters] = field(default_factory=list)  # HeurFedAMP's: the last model of every client
    kept: list[Any] = field(default_factory=list)  # what clients, edges or the cloud keep, by method
    turn: int = 0  # rounds done

    def round(self) -> None:
        """Train all clients for one cloud round."""
        _ROUNDS[type(self.algorithm)](self)
        self.turn += 1

    @property
    def clients(self) -> list[Client]:
        """All clients, where the edges are ignored."""
        return [client for edge in self.edges for client in edge]


def loop(
    algorithm: Algorithm,
    module: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    batch_size: int,
    classes: int,
    seed: int = 0,
) -> Loop:
    """A federation on data stacked as (edges, clients, rows, ...).

    Args:
        algorithm: one of `METHODS`, dense and with the options' defaults where they choose between ways.
        module: the architecture and its initial weights, on the device that computes.
        inputs: (edges, clients, rows, *shape), on the host.
        labels: (edges, clients, rows), on the host.
        batch_size: rows of a mini-batch; 0: all.
        classes: how many labels there are.
        seed: of what pFedGP draws.
    """
    rules = [rule for rule in algorithm.step_rules() if rule.uses_data and rule.sent]
    rule = rules[-1]  # after any look ahead
    make_client = partial(
        Client,
        module,
        batch_size=batch_size or labels.shape[-1],
        rate=rule.rate.value,
        proximity=0.0 if rule.pull is None else rule.pull.value,
    )
    edges = [
        [make_client(rows) for rows in zip(*edge, strict=True)] for edge in zip(inputs, labels, strict=True)
    ]
    ids = torch.arange(labels.shape[:2].numel()).view(labels.shape[:2])
    streams = key(seed, ROLES["client"], ids)
    return Loop(algorithm, edges, copied(module.parameters()), streams, classes)


def _average(clients: list[Client]) -> Parameters:
    return mean([client.parameters for client in clients], [float(client.size) for client in clients])


def _two_tiers(federation: Loop) -> None:
    algorithm, clients = federation.algorithm, federation.clients
    assert isinstance(algorithm, FedAvg | FedProx | KNNPer)
    for client in clients:
        client.descend(federation.model, algorithm.local_steps)
    federation.model = _average(clients)


def _hierfavg(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, HierFAVG)
    models = []
    for edge in federation.edges:
        model = federation.model
        for _ in range(algorithm.edge_rounds):
            for client in edge:
                client.descend(model, algorithm.local_steps)
            model = _average(edge)
        models.append(model)
    federation.model = mean(models, [float(sum(client.size for client in edge)) for edge in federation.edges])


def _perfedavg(federation: Loop) -> None:
    algorithm, clients = federation.algorithm, federation.clients
    assert isinstance(algorithm, PerFedAvg)
    rate = number(algorithm.adaptation_rate)
    for client in clients:
        client.receive(federation.model)
        for _ in range(algorithm.local_steps):
            before = copied(client.parameters)
            client.differentiate(client.batch())
            for own in client.parameters:
                assert own.grad is not None
                own.data.add_(own.grad.data, alpha=-rate)
            client.differentiate(client.batch())
            client.receive(before)
            client.optimizer.step()
    federation.model = _average(clients)


def _pfedme(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, PFedMe)
    share = number(algorithm.local_rate) * number(algorithm.client_proximity)
    models = []
    for client in federation.clients:
        client.receive(federation.model)
        model = federation.model
        for _ in range(algorithm.local_rounds):
            batch = client.batch()
            for _ in range(algorithm.personal_steps):
                client.step(batch, model)
            model = towards(model, client.parameters, share)
        models.append(model)
    average = mean(models, [1.0] * len(models))
    federation.model = towards(federation.model, average, number(algorithm.cloud_mixing))


def _heurfedamp(federation: Loop) -> None:
    algorithm, clients = federation.algorithm, federation.clients
    assert isinstance(algorithm, HeurFedAMP)
    models = federation.members or [federation.model] * len(clients)
    unit = normalize(torch.stack([torch.cat([part.flatten() for part in model]) for model in models]))
    own, share = torch.eye(len(clients)).to(unit), number(algorithm.self_weight)
    alike = (number(algorithm.attention) * (unit @ unit.mT)).masked_fill(own > 0, -torch.inf).softmax(-1)
    for client, weights in zip(clients, share * own + (1 - share) * alike, strict=True):
        client.descend(mean(models, weights.tolist()), algorithm.local_steps)
    federation.members = [copied(client.parameters) for client in clients]


def _pfedgp(federation: Loop) -> None:
    algorithm, clients = federation.algorithm, federation.clients
    assert isinstance(algorithm, PFedGP)
    for client, stream in zip(clients, federation.streams.flatten(), strict=True):
        client.receive(federation.model)
        for step in range(algorithm.local_steps):
            when = (federation.turn, 0, step)
            count = torch.tensor(client.size)
            rows, real = choose(
                key(stream, ROLES["support"], *when), count, client.size, algorithm.support_rows
            )
            inputs, labels, real, keys = (
                tensor.to(client.device)
                for tensor in (client.rows[0][rows], client.rows[1][rows], real, key(stream, *when))
            )
            client.optimizer.zero_grad()
            loss = predictive_loss(
                client.module(inputs),
                labels,
                real,
                keys,
                classes=federation.classes,
                chains=algorithm.chains,
                steps=algorithm.gibbs_steps,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            client.optimizer.step()
    federation.model = mean([client.parameters for client in clients], [1.0] * len(clients))


def _sfedhp(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, SFedHP)
    own, pull = number(algorithm.client_proximity), number(algorithm.edge_proximity)
    models = []
    for edge in federation.edges:
        model = personal = federation.model
        for _ in range(algorithm.edge_rounds):
            for client in edge:
                client.receive(personal)
                batch = client.batch()
                for _ in range(algorithm.personal_steps):
                    client.step(batch, personal)
            average = mean([client.parameters for client in edge], [1.0] * len(edge))
            personal = towards(model, average, own / (own + pull))
            model = towards(model, personal, number(algorithm.edge_rate) * pull)
        models.append(model)
    average = mean(models, [1.0] * len(models))
    goal = towards(federation.model, average, number(algorithm.cloud_mixing))
    if algorithm.server == "momentum":
        before = federation.kept or [torch.zeros_like(part) for part in goal]
        parts = zip(before, goal, federation.model, strict=True)
        federation.kept = [number(algorithm.server_beta1) * old + new - now for old, new, now in parts]
        goal = [now + step for now, step in zip(federation.model, federation.kept, strict=True)]
    federation.model = goal


def _from_clients(federation: Loop) -> None:
    """A round of a method whose cloud takes the mean, weighted by rows."""
    clients, model = federation.clients, federation.model
    federation.kept = federation.kept or [copied(model) for _ in clients]
    uploads = UPLOADS[type(federation.algorithm)](federation.algorithm, clients, model, federation.kept)
    federation.model = mean(uploads, [float(client.size) for client in clients])


def _with_controls(federation: Loop) -> None:
    """A round of a method that keeps gradients, 0 at first, and computes the cloud's next model itself."""
    algorithm, model = federation.algorithm, federation.model
    edges: Any = federation.edges if algorithm.tiers == 3 else federation.clients
    count = len(edges) if algorithm.tiers == 3 else len(edges) + 1
    federation.kept = federation.kept or [[torch.zeros_like(part) for part in model] for _ in range(count)]
    (federation.model,) = CONTROLLED[type(algorithm)](algorithm, edges, model, federation.kept)


_ROUNDS: dict[type[Algorithm], Callable[[Loop], None]] = {
    FedAvg: _two_tiers,
    FedProx: _two_tiers,
    HierFAVG: _hierfavg,
    PerFedAvg: _perfedavg,
    PFedMe: _pfedme,
    HeurFedAMP: _heurfedamp,
    PFedGP: _pfedgp,
    SFedHP: _sfedhp,
    SFedHPPlus: _sfedhp,
    FedAvgTuned: _two_tiers,
    KNNPer: _two_tiers,
    **dict.fromkeys(UPLOADS, _from_clients),
    **dict.fromkeys(CONTROLLED, _with_controls),
}
# The names of the methods that the loop can run.
METHODS = tuple(name for name, kind in ALGORITHMS.items() if kind in _ROUNDS)

"""A plain client-by-client loop, as public code of the field has it: what `sfedhp bench` measures against.

Every client owns a module, an SGD optimizer and a DataLoader whose iterator it keeps from round to round; a
server walks over its clients one after the other and adds up their parameters. Nothing is stacked, and
nothing is slower than it has to be in this manner: parameters are updated in place, nothing is evaluated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from sfedhp.algorithms import (
    Algorithm,
    FedAvg,
    FedProx,
    HeurFedAMP,
    HierFAVG,
    PerFedAvg,
    PFedMe,
    SFedHP,
)

Parameters = list[Tensor]


class Client:
    """One client: its module, its optimizer and its DataLoader."""

    def __init__(self, module: nn.Module, inputs: Tensor, labels: Tensor, batch_size: int, rate: float):
        self.module = copy.deepcopy(module)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=rate)
        self.size = len(labels)
        self.loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
            list(zip(inputs, labels, strict=True)),  # type: ignore[arg-type]
            batch_size,
        )
        self.batches: Iterator[tuple[Tensor, Tensor]] = iter(self.loader)

    @property
    def parameters(self) -> Parameters:
        """The module's own parameters."""
        return list(self.module.parameters())

    @torch.no_grad()
    def receive(self, parameters: Parameters) -> None:
        """Start from somebody else's parameters."""
        for own, new in zip(self.parameters, parameters, strict=True):
            own.copy_(new)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The loader's next mini-batch; begins again where it ends."""
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)

    def differentiate(self, batch: tuple[Tensor, Tensor]) -> None:
        """Leave the gradient of the loss in the parameters."""
        inputs, labels = batch
        self.optimizer.zero_grad()
        cross_entropy(self.module(inputs), labels).backward()

    def step(
        self, batch: tuple[Tensor, Tensor], anchor: Parameters | None = None, proximity: float = 0.0
    ) -> None:
        """One SGD step on ℓ(x; D) + λ/2 ‖x − anchor‖²."""
        self.differentiate(batch)
        if anchor is not None:
            with torch.no_grad():
                for own, center in zip(self.parameters, anchor, strict=True):
                    assert own.grad is not None
                    own.grad.add_(own - center, alpha=proximity)
        self.optimizer.step()


@dataclass
class Loop:
    """A federation of edges and their clients that trains one client after the other."""

    algorithm: Algorithm
    edges: list[list[Client]]
    model: Parameters  # the cloud's
    members: list[Parameters] = field(default_factory=list)  # HeurFedAMP's: the last model of every client

    def round(self) -> None:
        """One cloud round."""
        _ROUNDS[type(self.algorithm)](self)

    @property
    def clients(self) -> list[Client]:
        """All clients, where the edges are ignored."""
        return [client for edge in self.edges for client in edge]


def loop(algorithm: Algorithm, module: nn.Module, inputs: Tensor, labels: Tensor, batch_size: int) -> Loop:
    """A federation on data stacked as (edges, clients, rows, ...).

    Args:
        algorithm: one whose rounds stand below.
        module: the architecture and its initial weights.
        inputs: (edges, clients, rows, *shape).
        labels: (edges, clients, rows).
        batch_size: rows of a mini-batch.
    """
    names = ("personal_rate", "local_rate", "meta_rate")
    rate = next(getattr(algorithm, name) for name in names if hasattr(algorithm, name))
    edges = [
        [Client(module, rows, classes, batch_size, rate) for rows, classes in zip(*edge, strict=True)]
        for edge in zip(inputs, labels, strict=True)
    ]
    return Loop(algorithm, edges, _copied(module.parameters()))


@torch.no_grad()
def mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """The weighted mean of parameters, added up one after the other."""
    total = [torch.zeros_like(part) for part in models[0]]
    for model, weight in zip(models, weights, strict=True):
        for part, own in zip(total, model, strict=True):
            part.add_(own, alpha=weight / sum(weights))
    return total


@torch.no_grad()
def towards(model: Parameters, other: Parameters, share: float) -> Parameters:
    """A point on the way from one model to another."""
    return [torch.lerp(own, end, share) for own, end in zip(model, other, strict=True)]


def _copied(parameters: Iterator[nn.Parameter] | Parameters) -> Parameters:
    return [part.detach().clone() for part in parameters]


def _sizes(clients: Sequence[Client]) -> list[float]:
    return [float(client.size) for client in clients]


def _descend(client: Client, start: Parameters, steps: int, proximity: float) -> None:
    client.receive(start)
    for _ in range(steps):
        client.step(client.batch(), start if proximity else None, proximity)


def _two_tiers(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, FedAvg | FedProx)
    proximity = algorithm.proximity if isinstance(algorithm, FedProx) else 0.0
    clients = federation.clients
    for client in clients:
        _descend(client, federation.model, algorithm.local_steps, float(proximity))
    federation.model = mean([client.parameters for client in clients], _sizes(clients))


def _hierfavg(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, HierFAVG)
    models = []
    for edge in federation.edges:
        model = federation.model
        for _ in range(algorithm.edge_rounds):
            for client in edge:
                _descend(client, model, algorithm.local_steps, 0.0)
            model = mean([client.parameters for client in edge], _sizes(edge))
        models.append(model)
    federation.model = mean(models, [sum(_sizes(edge)) for edge in federation.edges])


def _perfedavg(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, PerFedAvg)
    clients = federation.clients
    for client in clients:
        client.receive(federation.model)
        for _ in range(algorithm.local_steps):
            before = _copied(client.parameters)
            client.differentiate(client.batch())
            with torch.no_grad():
                for own in client.parameters:
                    assert own.grad is not None
                    own.sub_(own.grad, alpha=float(algorithm.adaptation_rate))
            client.differentiate(client.batch())
            client.receive(before)
            client.optimizer.step()
    federation.model = mean([client.parameters for client in clients], _sizes(clients))


def _pfedme(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, PFedMe)
    proximity = float(algorithm.client_proximity)
    models = []
    for client in federation.clients:
        client.receive(federation.model)
        model = federation.model
        for _ in range(algorithm.local_rounds):
            batch = client.batch()
            for _ in range(algorithm.personal_steps):
                client.step(batch, model, proximity)
            model = towards(model, client.parameters, float(algorithm.local_rate) * proximity)
        models.append(model)
    average = mean(models, [1.0] * len(models))
    federation.model = towards(federation.model, average, float(algorithm.cloud_mixing))


def _heurfedamp(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, HeurFedAMP)
    clients = federation.clients
    models = federation.members or [federation.model] * len(clients)
    flat = torch.stack([torch.cat([part.flatten() for part in model]) for model in models])
    alike = torch.nn.functional.normalize(flat) @ torch.nn.functional.normalize(flat).mT
    own = torch.eye(len(clients))
    others = (float(algorithm.attention) * alike).masked_fill(own > 0, -torch.inf).softmax(-1)
    share = float(algorithm.self_weight)
    for client, weights in zip(clients, share * own + (1 - share) * others, strict=True):
        center = mean(models, weights.tolist())
        _descend(client, center, algorithm.local_steps, float(algorithm.proximity))
    federation.members = [_copied(client.parameters) for client in clients]


def _sfedhp(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, SFedHP)
    own, pull = float(algorithm.client_proximity), float(algorithm.edge_proximity)
    models = []
    for edge in federation.edges:
        model = personal = federation.model
        for _ in range(algorithm.edge_rounds):
            for client in edge:
                client.receive(personal)
                batch = client.batch()
                for _ in range(algorithm.personal_steps):
                    client.step(batch, personal, own)
            average = mean([client.parameters for client in edge], [1.0] * len(edge))
            personal = towards(model, average, own / (own + pull))
            model = towards(model, personal, float(algorithm.edge_rate) * pull)
        models.append(model)
    average = mean(models, [1.0] * len(models))
    federation.model = towards(federation.model, average, float(algorithm.cloud_mixing))


_ROUNDS: dict[type[Algorithm], Callable[[Loop], None]] = {
    FedAvg: _two_tiers,
    FedProx: _two_tiers,
    HierFAVG: _hierfavg,
    PerFedAvg: _perfedavg,
    PFedMe: _pfedme,
    HeurFedAMP: _heurfedamp,
    SFedHP: _sfedhp,
}

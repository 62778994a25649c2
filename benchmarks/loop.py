"""A plain client-by-client loop, as public code of the field has it: what `sfedhp bench` measures against.

Every client owns a module, an SGD optimizer and a DataLoader whose iterator it keeps from round to round; a
server walks over its clients one after the other and adds up their parameters. Proximal steps are written as
the pFedMe code writes them, an optimizer whose step is one expression of new tensors. Nothing is evaluated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
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


class ProximalSGD(torch.optim.Optimizer):
    """SGD on ℓ(x; D) + λ/2 ‖x − center‖² + μ/2 ‖x‖²."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, proximity: float):
        super().__init__(parameters, {"lr": rate, "proximity": proximity, "decay": 0.0})
        self.centers: Parameters = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter."""
        for group in self.param_groups:
            for own, center in zip(group["params"], self.centers, strict=True):
                pull = group["proximity"] * (own.data - center.data) + group["decay"] * own.data
                own.data = own.data - group["lr"] * (own.grad.data + pull)


class Client:
    """One client: its module, its optimizer and its DataLoader."""

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        batch_size: int,
        rate: float,
        proximity: float,
    ):
        self.module = copy.deepcopy(module)
        self.optimizer: torch.optim.Optimizer
        if proximity:
            self.optimizer = ProximalSGD(self.module.parameters(), rate, proximity)
        else:
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

    def receive(self, parameters: Parameters) -> None:
        """Start from somebody else's parameters."""
        for own, new in zip(self.module.parameters(), parameters, strict=True):
            own.data = new.data.clone()

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
        cross_entropy(self.module(inputs), labels).backward()  # type: ignore[no-untyped-call]

    def step(self, batch: tuple[Tensor, Tensor], center: Parameters) -> None:
        """One SGD step, pulled to the center where the method pulls."""
        self.differentiate(batch)
        if isinstance(self.optimizer, ProximalSGD):
            self.optimizer.centers = center
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
    rate = _option(algorithm, "personal_rate", "local_rate", "meta_rate")
    proximity = _option(algorithm, "client_proximity", "proximity")
    edges = [
        [
            Client(module, rows, classes, batch_size, rate, proximity)
            for rows, classes in zip(*edge, strict=True)
        ]
        for edge in zip(inputs, labels, strict=True)
    ]
    return Loop(algorithm, edges, _copied(module.parameters()))


def mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """The weighted mean of parameters, added up one after the other."""
    total = [torch.zeros_like(part.data) for part in models[0]]
    for model, weight in zip(models, weights, strict=True):
        total = [part + own.data * (weight / sum(weights)) for part, own in zip(total, model, strict=True)]
    return total


def towards(model: Parameters, other: Parameters, share: float) -> Parameters:
    """A point on the way from one model to another."""
    return [own.data - share * (own.data - end.data) for own, end in zip(model, other, strict=True)]


def _option(algorithm: Algorithm, *names: str) -> float:
    """The first of these fields that the algorithm has, else 0."""
    return float(next((getattr(algorithm, name) for name in names if hasattr(algorithm, name)), 0.0))


def _copied(parameters: Iterator[nn.Parameter] | Parameters) -> Parameters:
    return [part.detach().clone() for part in parameters]


def _sizes(clients: Sequence[Client]) -> list[float]:
    return [float(client.size) for client in clients]


def _descend(client: Client, start: Parameters, steps: int) -> None:
    client.receive(start)
    for _ in range(steps):
        client.step(client.batch(), start)


def _two_tiers(federation: Loop) -> None:
    algorithm, clients = federation.algorithm, federation.clients
    assert isinstance(algorithm, FedAvg | FedProx)
    for client in clients:
        _descend(client, federation.model, algorithm.local_steps)
    federation.model = mean([client.parameters for client in clients], _sizes(clients))


def _hierfavg(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, HierFAVG)
    models = []
    for edge in federation.edges:
        model = federation.model
        for _ in range(algorithm.edge_rounds):
            for client in edge:
                _descend(client, model, algorithm.local_steps)
            model = mean([client.parameters for client in edge], _sizes(edge))
        models.append(model)
    federation.model = mean(models, [sum(_sizes(edge)) for edge in federation.edges])


def _perfedavg(federation: Loop) -> None:
    algorithm, clients = federation.algorithm, federation.clients
    assert isinstance(algorithm, PerFedAvg)
    rate = _option(algorithm, "adaptation_rate")
    for client in clients:
        client.receive(federation.model)
        for _ in range(algorithm.local_steps):
            before = _copied(client.parameters)
            client.differentiate(client.batch())
            for own in client.parameters:
                assert own.grad is not None
                own.data.add_(own.grad.data, alpha=-rate)
            client.differentiate(client.batch())
            client.receive(before)
            client.optimizer.step()
    federation.model = mean([client.parameters for client in clients], _sizes(clients))


def _pfedme(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, PFedMe)
    share = _option(algorithm, "local_rate") * _option(algorithm, "client_proximity")
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
    federation.model = towards(federation.model, average, _option(algorithm, "cloud_mixing"))


def _heurfedamp(federation: Loop) -> None:
    algorithm, clients = federation.algorithm, federation.clients
    assert isinstance(algorithm, HeurFedAMP)
    models = federation.members or [federation.model] * len(clients)
    unit = normalize(torch.stack([torch.cat([part.flatten() for part in model]) for model in models]))
    own, share = torch.eye(len(clients)), _option(algorithm, "self_weight")
    alike = (_option(algorithm, "attention") * (unit @ unit.mT)).masked_fill(own > 0, -torch.inf).softmax(-1)
    for client, weights in zip(clients, share * own + (1 - share) * alike, strict=True):
        _descend(client, mean(models, weights.tolist()), algorithm.local_steps)
    federation.members = [_copied(client.parameters) for client in clients]


def _sfedhp(federation: Loop) -> None:
    algorithm = federation.algorithm
    assert isinstance(algorithm, SFedHP)
    own, pull = _option(algorithm, "client_proximity"), _option(algorithm, "edge_proximity")
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
            model = towards(model, personal, _option(algorithm, "edge_rate") * pull)
        models.append(model)
    average = mean(models, [1.0] * len(models))
    federation.model = towards(federation.model, average, _option(algorithm, "cloud_mixing"))


_ROUNDS: dict[type[Algorithm], Callable[[Loop], None]] = {
    FedAvg: _two_tiers,
    FedProx: _two_tiers,
    HierFAVG: _hierfavg,
    PerFedAvg: _perfedavg,
    PFedMe: _pfedme,
    HeurFedAMP: _heurfedamp,
    SFedHP: _sfedhp,
}

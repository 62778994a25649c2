"""A client of the plain loop: a module, an optimizer and a DataLoader, as in most public code."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

Parameters = list[Tensor]
Pair = tuple[Tensor, Tensor]  # inputs and labels


class ProximalSGD(torch.optim.Optimizer):
    """SGD on ℓ(x; D) + λ/2 ‖x − center‖², a step being one expression of new tensors, decay included."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, proximity: float):
        super().__init__(parameters, {"lr": rate, "proximity": proximity, "decay": 0.0})
        self.centers: Parameters = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients left in the parameters."""
        for group in self.param_groups:
            for own, center in zip(group["params"], self.centers, strict=True):
                pull = group["proximity"] * (own.data - center.data) + group["decay"] * own.data
                own.data = own.data - group["lr"] * (own.grad.data + pull)


class Client:
    """One client. Its DataLoader's iterator is kept from round to round."""

    def __init__(
        self, module: nn.Module, rows: Pair, batch_size: int, *, rate: float, proximity: float = 0.0
    ):
        """Take a copy of the module.

        Args:
            module: the architecture and its initial weights, on the device that computes.
            rows: all inputs and labels of this client, on the host.
            batch_size: rows of a mini-batch.
            rate: of the SGD steps.
            proximity: the pull to the center that `step` is given; 0: plain SGD.
        """
        self.module = copy.deepcopy(module)
        self.device = next(module.parameters()).device
        self.optimizer: torch.optim.Optimizer
        if proximity:
            self.optimizer = ProximalSGD(self.module.parameters(), rate, proximity)
        else:
            self.optimizer = torch.optim.SGD(self.module.parameters(), lr=rate)
        self.rows = rows
        self.size = len(rows[1])
        self.loader: DataLoader[Pair] = DataLoader(
            list(zip(*rows, strict=True)),  # type: ignore[arg-type]
            batch_size,
        )
        self.batches: Iterator[Pair] = iter(self.loader)

    @property
    def parameters(self) -> Parameters:
        """The parameters of the client's module, not copied."""
        return list(self.module.parameters())

    def receive(self, parameters: Parameters) -> None:
        """Overwrite the client's parameters with copies of these."""
        for own, new in zip(self.module.parameters(), parameters, strict=True):
            own.data = new.data.clone()

    def batch(self) -> Pair:
        """The loader's next mini-batch; restarts the loader at its end."""
        try:
            inputs, labels = next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            inputs, labels = next(self.batches)
        return inputs.to(self.device), labels.to(self.device)

    def differentiate(self, batch: Pair) -> None:
        """Compute the gradient of the loss into the parameters' `grad`."""
        inputs, labels = batch
        self.optimizer.zero_grad()
        cross_entropy(self.module(inputs), labels).backward()  # type: ignore[no-untyped-call]

    def step(self, batch: Pair, center: Parameters) -> None:
        """One SGD step, with a pull to the center if the method has one."""
        self.differentiate(batch)
        if isinstance(self.optimizer, ProximalSGD):
            self.optimizer.centers = center
        self.optimizer.step()

    def descend(self, start: Parameters, steps: int) -> None:
        """Steps from a model, pulled to it, each on the next mini-batch."""
        self.receive(start)
        for _ in range(steps):
            self.step(self.batch(), start)


def copied(parameters: Iterable[Tensor]) -> Parameters:
    """A copy of the parameters in new memory."""
    return [part.detach().clone() for part in parameters]


def mean(models: Sequence[Parameters], weights: Sequence[float]) -> Parameters:
    """The weighted mean of parameters, added up one after the other."""
    total = [torch.zeros_like(part.data) for part in models[0]]
    whole = sum(weights)
    for model, weight in zip(models, weights, strict=True):
        total = [part + own.data * (weight / whole) for part, own in zip(total, model, strict=True)]
    return total


def towards(model: Parameters, other: Parameters, share: float) -> Parameters:
    """A point on the way from one model to another."""
    return [own.data - share * (own.data - end.data) for own, end in zip(model, other, strict=True)]

"""Clients with least-squares losses: everything the theorems are about has a closed form there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sfedhp.algorithms import SFedHP
from sfedhp.core.factored import Factored, dense
from sfedhp.core.keys import ROLES, key
from sfedhp.core.types import Batch
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.losses import Loss
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from sfedhp.theory.constants import Constants


@dataclass
class Quadratics(Task):
    """ℓ_ij(θ) = mean over rows of ½ (a·θ − b)², plus weight decay; `inputs` holds a and `labels` b."""

    def gradient(self, model: Tensor | Factored, batch: Batch, loss: Loss | None = None) -> Tensor:
        """∇ℓ(θ; D) = mean of (a·θ − b) a, plus the weight decay's part."""
        flat = dense(model).expand(*self.lead, self.network.d)
        off = (batch.inputs @ flat.unsqueeze(-1)).squeeze(-1) - batch.labels
        grad = (torch.where(batch.real, off, 0.0).unsqueeze(-1) * batch.inputs).sum(-2)
        return grad / batch.real.sum(-1, keepdim=True).clamp_min(1) + self.weight_decay * flat

    def hessians(self) -> Tensor:
        """(..., d, d) of every client's loss on all its rows."""
        count = self.sizes[..., None, None]
        identity = torch.eye(self.network.d, dtype=self.inputs.dtype)
        return self.inputs.mT @ self.inputs / count + self.weight_decay * identity

    def minimizers(self) -> Tensor:
        """(..., d) of every client's loss."""
        right = (self.inputs * self.labels.unsqueeze(-1)).sum(-2) / self.sizes.unsqueeze(-1)
        found: Tensor = torch.linalg.solve(self.hessians(), right)
        return found


def least_squares(task: Task, model: Tensor) -> Tensor:
    """ℓ_ij (...) over all of a client's rows."""
    off = (task.inputs @ model.unsqueeze(-1)).squeeze(-1) - task.labels
    return off.square().mean(-1) / 2 + task.weight_decay / 2 * model.square().sum(-1)


def quadratics(
    edges: int = 4,
    clients_per_edge: int = 5,
    size: int = 10,
    rows: int = 40,
    convexity: float = 1.0,
    spread: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
) -> Quadratics:
    """Clients that differ in curvature and in what they want.

    Args:
        edges: N.
        clients_per_edge: J.
        size: d.
        rows: of each client.
        convexity: weight decay, below which no eigenvalue falls.
        spread: the standard deviation of the clients' true models around a common one.
        noise: the standard deviation of what no model can explain.
        seed: decides everything.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lead = (edges, clients_per_edge)
    stretch = (
        draw(*lead, 1, size) / 2
    ).exp()  # directions differ in weight, and for each client in another way
    inputs = draw(*lead, rows, size) * stretch
    truth = draw(size) + spread * draw(*lead, size)
    labels = (inputs @ truth.unsqueeze(-1)).squeeze(-1) + noise * draw(*lead, rows)
    ids = torch.arange(edges * clients_per_edge).view(lead)
    network = Network(nn.Linear(size, 1, bias=False).double())
    stream = key(seed, ROLES["client"], ids)
    return Quadratics(
        network, inputs, labels, torch.full(lead, rows), stream, 0, weight_decay=convexity, min_rows=rows
    )


class Optimum(NamedTuple):
    """The minimum of F on quadratics without penalties."""

    model: Tensor  # (d,), w*
    hessians: Tensor  # (edges, clients, d, d), of the F_ij
    centers: Tensor  # (edges, clients, d), where each F_ij is least

    def excess(self, model: Tensor) -> Tensor:
        """How far a model's objective is above the optimum: F(w) − F(w*)."""
        return self._value(model) - self._value(self.model)

    def gradients(self, model: Tensor) -> Tensor:
        """The gradient of each client's objective: ∇F_ij(w), (edges, clients, d)."""
        return (self.hessians @ (model - self.centers).unsqueeze(-1)).squeeze(-1)

    def _value(self, model: Tensor) -> Tensor:
        off = model - self.centers
        return (off * self.gradients(model)).sum(-1).mean() / 2


def optimum(task: Quadratics, constants: Constants) -> Optimum:
    """w* = argmin F: F_ij has the Hessian λ̄ H (λ̄ I + H)⁻¹ around the client's own minimum."""
    hessians, centers = task.hessians(), task.minimizers()
    stiff = constants.series_proximity
    identity = torch.eye(hessians.shape[-1], dtype=hessians.dtype)
    envelope_hessians = stiff * torch.linalg.solve(stiff * identity + hessians, hessians)
    total = envelope_hessians.flatten(0, 1).sum(0)
    model = torch.linalg.solve(
        total, (envelope_hessians @ centers.unsqueeze(-1)).flatten(0, 1).sum(0)
    ).squeeze(-1)
    return Optimum(model, envelope_hessians, centers)


class Snapshot(NamedTuple):
    """A run after a round; (runs, ...) where it is a stack of runs."""

    model: Tensor  # (d,), w
    personal: Tensor  # (edges, clients, d), θ_ij


def trajectory(
    task: Task, algorithm: SFedHP, rounds: int, initial: Tensor, *, batch_size: int = 0
) -> Iterator[Snapshot]:
    """Algorithm 1 on the package's own simulator, round by round, from a model (d,) or a stack (runs, d)."""
    lead, ids = initial.shape[:-1], torch.arange(task.lead.numel()).view(task.lead)
    stacked = replace(task, batch_size=batch_size).map(lambda tensor: tensor.expand(*lead, *tensor.shape))
    stream = key(0, ROLES["draw"]).expand(lead)
    simulator = Simulator(algorithm, stacked, ids, initial, initial.new_zeros(*lead, 0), stream)
    for state in simulator.run(rounds):
        yield Snapshot(state.served.state, dense(state.personal))


class CloudRound(NamedTuple):
    """What a cloud round with full batches does to the global model of quadratic clients: w → A w + b."""

    matrix: Tensor  # A
    shift: Tensor  # b

    @property
    def fixed_point(self) -> Tensor:
        """The model that a round leaves as it is."""
        identity = torch.eye(len(self.shift), dtype=self.shift.dtype)
        point: Tensor = torch.linalg.solve(identity - self.matrix, self.shift)
        return point

    @property
    def rate(self) -> float:
        """By how much a round shrinks the distance to the fixed point, in the end."""
        return float(torch.linalg.eigvals(self.matrix).abs().max())


def cloud_round(task: Quadratics, algorithm: SFedHP) -> CloudRound:
    """The map of a cloud round, read off Algorithm 1's answers to zero and to the unit vectors."""
    size = task.network.d
    probes = torch.cat([task.inputs.new_zeros(1, size), torch.eye(size, dtype=task.inputs.dtype)])
    answers = next(iter(trajectory(task, algorithm, 1, probes))).model
    return CloudRound((answers[1:] - answers[0]).mT, answers[0])


def exact_method(task: Quadratics, **fields: Any) -> tuple[SFedHP, Constants]:
    """sFedHP whose inner problems are solved to the end on full batches, and its constants there."""
    eigenvalues = torch.linalg.eigvalsh(task.hessians())
    least, most = float(eigenvalues.min()), float(eigenvalues.max())
    fields = {"client_proximity": 20.0, "edge_proximity": 20.0, "personal_steps": 40} | fields
    method = SFedHP(personal_rate=1 / (fields["client_proximity"] + most), **fields)
    return method, Constants.of_loss(method, most, least)

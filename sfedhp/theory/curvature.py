"""The curvature of clients' losses, by power iteration: on data, or on Hessians that are never built."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.types import Batch, Clock
from sfedhp.nn.losses import MeanLoss, cross_entropy
from sfedhp.nn.network import split
from sfedhp.nn.row_losses import squared_error
from sfedhp.nn.task import Task

BATCHES = 20  # mini-batches of a client whose curvature is measured
CLIENTS = 20  # clients whose mini-batches are measured, evenly spaced
LOSS_CLIENTS = 4  # clients whose loss over many rows is measured
LOSS_ROWS = 200  # rows of that loss, at most
STEPS = 10  # products with a Hessian; Lanczos's method is then within a few percent


class BatchCurvature(NamedTuple):
    """The largest eigenvalue of a client's mini-batch losses at the initial weights, over the clients."""

    median: float  # h, the median over clients
    worst: float  # reached by a tenth of the clients
    bounded: bool  # all layers but one, at most, are normalized: an overshoot cannot feed on itself


class Curvature(NamedTuple):
    """Smoothness and convexity of the clients' losses; mini-batches have a `BatchCurvature`."""

    smoothness: float  # L, the largest over clients
    convexity: float  # μ; 0 if a loss is not strongly convex
    exact: bool  # L holds everywhere and not only at the initial weights
    clients: int = 0  # of how many clients L was measured; 0: of all


def batch_curvature(task: Task, model: Tensor) -> BatchCurvature:
    """Curvature of the mini-batch losses of up to `CLIENTS` of a task's clients at a model (d,)."""
    task = _sampled(task, CLIENTS)
    bounded = is_bounded(task, model)
    # If h limits nothing, one batch is enough to show its size.
    turns = range(1 if bounded else BATCHES)
    each = [largest_eigenvalue(task, model, task.batch(Clock(0, turn))) for turn in turns]
    clients = sorted(torch.stack(each).amax(0).tolist(), reverse=True)
    return BatchCurvature(statistics.median(clients), clients[math.ceil(len(clients) / 10) - 1], bounded)


def measure(task: Task, model: Tensor) -> Curvature:
    """L and μ of the clients' losses.

    If L has no global bound, it is measured at a model (d,), on at most `LOSS_ROWS` rows of each of
    `LOSS_CLIENTS` clients.
    """
    if len(task.network.layers) == 1 and task.loss is cross_entropy:
        # The Hessian of linear scores is bounded by the data, and is zero along equal scores (1, …, 1).
        return Curvature(linear_smoothness(task), task.weight_decay, True)
    few = _sampled(task, LOSS_CLIENTS)
    rows = min(LOSS_ROWS, few.rows)
    whole = largest_eigenvalue(few, model, few.batch(Clock(0), count=rows))
    return Curvature(float(whole.max()), 0.0, False, clients=whole.numel())


def is_bounded(task: Task, model: Tensor) -> bool:
    """Whether at most one layer feeds no normalization, so that the loss has a bounded gradient.

    The squared error has none, for any layers.

    Scaling a normalized layer does not change the scores, and the larger it is, the smaller is its curvature.
    So a step that is too large only makes the curvature smaller. With two other layers, each scales the
    gradient of the other.
    """
    if task.loss == MeanLoss(squared_error):
        return False
    rows = task.batch(Clock(0)).inputs
    statistics = rows.new_zeros(()).expand(*task.lead, task.network.s)

    def scores(parts: dict[str, Tensor]) -> Tensor:
        return task.network.run(parts, statistics, rows, task.lead, train=True)[0]

    weights = split(model.expand(*task.lead, model.shape[-1]), task.network.weights)
    layers = {name.rpartition(".")[0] for name, shape in task.network.weights.items() if len(shape) > 1}
    before = scores(weights)
    kept = 0
    for layer in layers:
        larger = {
            name: 2 * part if name.rpartition(".")[0] == layer else part for name, part in weights.items()
        }
        kept += bool((scores(larger) - before).norm() < 0.05 * before.norm())
    return len(layers) - kept <= 1


def largest_eigenvalue(task: Task, model: Tensor, batch: Batch, steps: int = STEPS) -> Tensor:
    """The largest eigenvalue (...) of each client's ∇²ℓ(x; D), weight decay included.

    Lanczos's form of power iteration: the largest eigenvalue of the Hessian within the space that the
    products have spanned, which only grows with the steps.
    """
    model = model.expand(*task.lead, model.shape[-1])
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(model.shape[-1], generator=generator, dtype=model.dtype).to(model.device)
    now = (start / start.norm()).expand(model.shape)
    before = torch.zeros_like(now)
    beta = now.new_zeros(*now.shape[:-1], 1)
    diagonal, beside = [], []
    for _ in range(steps):
        ahead = task.curvature(model, batch, now) - beta * before
        alpha = (ahead * now).sum(-1, keepdim=True)
        ahead = ahead - alpha * now
        beta = ahead.norm(dim=-1, keepdim=True)
        diagonal.append(alpha.squeeze(-1))
        # Once the space is exhausted, the remainder is rounding, which must not be normalized.
        real = beta > 1e-4 * torch.stack(diagonal, -1).abs().amax(-1, keepdim=True)
        before, now = now, torch.where(real, ahead / beta.clamp_min(torch.finfo(beta.dtype).tiny), 0.0)
        beta = torch.where(real, beta, 0.0)
        beside.append(beta.squeeze(-1))
    table = torch.diag_embed(torch.stack(diagonal, -1).double())
    links = torch.stack(beside[:-1], -1).double()
    table = table + torch.diag_embed(links, 1) + torch.diag_embed(links, -1)
    eigenvalues: Tensor = torch.linalg.eigvalsh(table)
    return eigenvalues[..., -1]


def linear_smoothness(task: Task, steps: int = 50) -> float:
    """L of cross-entropy on linear scores, everywhere: ½ λ_max(mean of x xᵀ, bias as a 1) + weight decay.

    The Hessian of cross-entropy in the scores, diag(p) − p pᵀ, has no eigenvalue above ½.
    """
    batch = task.everything()
    rows = batch.inputs.flatten(len(task.lead) + 1).double()
    rows = torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], -1) * batch.real.unsqueeze(-1)
    counts = batch.real.sum(-1).clamp_min(1)
    # The mean row alone is not enough: of centered data it is the bias axis, which iterations never leave.
    start = torch.randn(rows.shape[-1], generator=torch.Generator().manual_seed(0), dtype=rows.dtype)
    start, mean = start.to(rows.device), rows.mean(-2)
    direction = mean + start / start.norm() * mean.norm(dim=-1, keepdim=True)
    value = rows.new_zeros(task.lead)
    for _ in range(steps):
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        image = ((rows @ direction.unsqueeze(-1)) * rows).sum(-2) / counts.unsqueeze(-1)
        value, direction = (image * direction).sum(-1), image
    return 0.5 * float(value.max()) + task.weight_decay


def _sampled(task: Task, most: int) -> Task:
    """Up to `most` of the clients that hold data, evenly spaced, as a stack of one axis."""
    axes = len(task.lead)
    flat = task.map(lambda tensor: tensor.reshape(-1, *tensor.shape[axes:]))
    held = (flat.sizes > 0).nonzero().flatten()
    places = torch.linspace(0, len(held) - 1, min(most, len(held))).round().long()
    chosen = held[places.to(held.device)]
    return flat.map(lambda tensor: tensor[chosen])

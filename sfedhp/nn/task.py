"""A client's problem, or a whole stack of them: data, network, mini-batches, gradients, scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, pad

from sfedhp.core.factored import Factored, dense
from sfedhp.core.keys import ROLES, choose, key
from sfedhp.core.types import Batch, Clock
from sfedhp.core.vectors import density
from sfedhp.nn import mlp as perceptron
from sfedhp.nn.conv.network import Convolutions
from sfedhp.nn.kernels import available
from sfedhp.nn.mlp import CrossEntropy, Layers, distinct_models
from sfedhp.nn.network import Network, split

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

DENSITY_THRESHOLD = 5e-4  # what an experiment takes for τ unless it is told


def cross_entropy(scores: Tensor, labels: Tensor, real: Tensor) -> Tensor:
    """The mean over the real rows, (..., rows, classes) to (...)."""
    each = -log_softmax(scores, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return torch.where(real, each, 0.0).sum(-1) / real.sum(-1).clamp_min(1)


@dataclass
class Task:
    """The problems of a stack of clients; on a device the leading axes are absent.

    A task holds no counter: what is drawn depends on the clock alone. `statistics` are lent to it by the
    engine for one step: a training forward leaves the moved ones there and never reads them.
    """

    network: Network
    inputs: Tensor  # (..., rows, *shape)
    labels: Tensor  # (..., rows)
    sizes: Tensor  # (...): how many rows are real; the rest is padding
    stream: Tensor  # (...): the key of seed and client id
    batch_size: int  # 0: all rows
    weight_decay: float = 0.0
    statistics: Tensor | None = None  # (..., s)
    min_rows: int = 0  # rows that every client has at least, unless it has none; 0: not known
    force_autograd: bool = False  # autograd and built models even where the network could be worked by hand
    classes: int = 0  # of the federation's labels; a method that predicts without a head needs it
    density_threshold: float = DENSITY_THRESHOLD  # τ, below which a weight counts as zero

    @property
    def lead(self) -> torch.Size:
        """The shape of the stack."""
        return self.sizes.shape

    @property
    def layers(self) -> Layers:
        """The network's linear layers, where it is worked by hand; none where autograd does it."""
        rows_fit = self.network.flattens or self.inputs.ndim == len(self.lead) + 2
        return self.network.layers if rows_fit and not self.force_autograd else ()

    @property
    def convolutions(self) -> Convolutions | None:
        """The network as convolutions, where it is worked by hand as such."""
        network = None if self.force_autograd else self.network.convolutions
        return network if network and network.fits(self.inputs.shape[len(self.lead) + 1 :]) else None

    @property
    def gradients(self) -> str:
        """How gradients are computed, in words."""
        if not self.layers and not self.convolutions:
            return "autograd"
        device, shape = self.inputs.device, self.inputs.shape[len(self.lead) + 1 :]
        way = "linear layers by hand" if self.layers else "convolutions by hand"
        if self.layers and available.kernels_run_on(device):
            return f"{way}, small products fused"
        if self.convolutions and not self.may_pad and self.convolutions.fused(shape, device):
            return f"{way}, fused kernels"
        reason = available.unavailable_reason(device) if device.type == "cuda" else ""
        return f"{way}, not fused: {reason}" if reason else way

    @property
    def may_pad(self) -> bool:
        """Whether mini-batches may be: whether some of their rows may only pad."""
        width = self.labels.shape[-1]
        return self.rows_may_pad(min(self.batch_size or width, width))

    def rows_may_pad(self, rows: int) -> bool:
        """Whether some of so many rows of a client may only pad.

        A client without any is not asked: whatever it computes, nobody reads it.
        """
        return rows > self.min_rows

    def to(self, device: torch.device) -> Task:
        """The same task on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def map(self, function: Callable[[Tensor], Tensor]) -> Task:
        """The same function applied to every tensor of the stack: a slice, a choice, another shape."""
        names = ("inputs", "labels", "sizes", "stream", "statistics")
        changes: dict[str, Any] = {name: getattr(self, name) for name in names}
        changes = {name: function(value) for name, value in changes.items() if value is not None}
        return replace(self, **changes)

    def batch(self, clock: Clock, step: int = 0, role: str = "batch", count: int | None = None) -> Batch:
        """A mini-batch of distinct rows, drawn by (seed, client id, role, clock, step) and nothing else."""
        keys = key(self.stream, ROLES[role], clock.cloud_round, clock.edge_round, step)
        wanted = self.batch_size if count is None else count
        if not wanted:
            return self.everything()
        width = self.labels.shape[-1]
        rows, real = choose(keys, self.sizes, width, wanted, self.rows_may_pad(width))
        return Batch(_taken(self.inputs, rows), self.labels.gather(-1, rows), real)

    def everything(self) -> Batch:
        """All rows of every client."""
        rows = torch.arange(self.labels.shape[-1], device=self.labels.device)
        return Batch(self.inputs, self.labels, rows < self.sizes.unsqueeze(-1))

    def gradient(self, model: Tensor | Factored, batch: Batch, loss: Loss = cross_entropy) -> Tensor:
        """∇ℓ(x; D), plus the weight decay's part; (..., d) to (..., d).

        Clients share no loss term, so the gradient of the sum over the stack is the stack of their gradients.
        """
        if self.layers:
            slopes = self._by_hand(model, batch, loss)
        elif self.convolutions:
            slopes = self._by_convolution(self.convolutions, dense(model), batch, loss)
        else:
            slopes = self._by_autograd(dense(model), batch, loss)
        return slopes.add_(dense(model), alpha=self.weight_decay) if self.weight_decay else slopes

    def density(self, model: Tensor | Factored) -> Tensor:
        """The share (...) of weights of models (..., d) that do not count as zero."""
        return density(dense(model), self.density_threshold)

    def curvature(self, model: Tensor, batch: Batch, direction: Tensor, loss: Loss = cross_entropy) -> Tensor:
        """The product of ∇²ℓ(x; D), weight decay included, with a direction (..., d)."""
        leaves = self._leaves(model)
        along = split(direction, self.network.weights).values()
        with torch.enable_grad():
            outputs, _ = self._train(leaves, batch)
            total = loss(outputs, batch.labels, batch.real).sum()
            values = list(leaves.values())
            slopes = torch.autograd.grad(total, values, create_graph=True, materialize_grads=True)
            change = sum((slope * part).sum() for slope, part in zip(slopes, along, strict=True))
            assert isinstance(change, Tensor)
            products = torch.autograd.grad(change, values, materialize_grads=True)
        return self._flat(products) + self.weight_decay * direction

    def scores(self, model: Tensor | Factored, inputs: Tensor) -> Tensor:
        """What models (..., d) say of inputs (..., rows, *shape): (..., rows, outputs)."""
        if self.layers:
            rows = inputs.reshape(self.lead.numel(), inputs.shape[len(self.lead)], -1)
            models = perceptron.stacked(self.layers, model, self.lead, rows.shape[1])
            outputs = perceptron.ascend(self.layers, models, rows)[-1]
            return outputs.view(*self.lead, *outputs.shape[1:])
        flat = dense(model).expand(*self.lead, self.network.d)
        worn = self._statistics(flat)
        if self.convolutions:
            # Clients that share a model, and the statistics it wears, are one.
            flat = distinct_models(flat, self.lead)
            worn = distinct_models(worn, self.lead) if self.network.s else flat[:, :0]
            together = max(len(flat), len(worn))
            rows = inputs.reshape(together, -1, *inputs.shape[len(self.lead) + 1 :])
            outputs = self.convolutions.scores(flat, worn.repeat_interleave(together // len(worn), 0), rows)
            return outputs.view(*inputs.shape[: len(self.lead) + 1], -1)
        lead, axes = self.lead, len(self.lead)
        if axes and not any(flat.stride()[:axes]) and not any(worn.stride()[:axes]):
            # One model for the whole stack: a single forward over all rows, and the model is read once.
            first = (0,) * axes
            alone = split(flat[first], self.network.weights)
            rows = inputs.flatten(0, axes)
            outputs, _ = self.network.run(alone, worn[first], rows, torch.Size(), train=False)
            return outputs.reshape(*inputs.shape[: axes + 1], -1)
        outputs, _ = self.network.run(split(flat, self.network.weights), worn, inputs, lead, train=False)
        return outputs

    def _by_hand(self, model: Tensor | Factored, batch: Batch, loss: Loss) -> Tensor:
        rows = batch.inputs.reshape(self.lead.numel(), batch.labels.shape[-1], -1)
        known = None
        if loss is cross_entropy:
            known = CrossEntropy(
                batch, rows, self.layers[-1].outputs, padded=self.rows_may_pad(rows.shape[1])
            )
        models = perceptron.stacked(self.layers, model, self.lead, rows.shape[1])
        slopes = perceptron.gradient(self.layers, models, rows, known or _slope(loss, batch))
        return slopes.view(*self.lead, -1)

    def _by_convolution(self, network: Convolutions, model: Tensor, batch: Batch, loss: Loss) -> Tensor:
        clients, axes = self.lead.numel(), len(self.lead)
        flat = Batch(*(part.reshape(clients, *part.shape[axes:]) for part in batch))
        slopes, moved = network.gradient(
            distinct_models(model, self.lead),
            self._statistics(model).reshape(clients, self.network.s),
            flat,
            padded=self.rows_may_pad(batch.labels.shape[-1]),
            slope=None if loss is cross_entropy else _slope(loss, batch),
        )
        if self.network.s:
            self.statistics = moved.view(*self.lead, -1)
        return slopes.view(*self.lead, -1)

    def _by_autograd(self, model: Tensor, batch: Batch, loss: Loss) -> Tensor:
        leaves = self._leaves(model)
        with torch.enable_grad():
            outputs, moved = self._train(leaves, batch)
            total = loss(outputs, batch.labels, batch.real).sum()
            slopes = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        if self.network.s:
            self.statistics = moved.detach()
        return self._flat(slopes)

    def _statistics(self, model: Tensor) -> Tensor:
        # Where there are none, a saved stack of nothing must not look like one of different statistics.
        if self.statistics is None or not self.network.s:
            return model.new_zeros(()).expand(*self.lead, self.network.s)
        return self.statistics

    def _leaves(self, model: Tensor) -> dict[str, Tensor]:
        # Differentiating through slices of the flat vector would cost five times as much.
        parts = split(model.detach().expand(*self.lead, self.network.d), self.network.weights)
        return {name: part.detach().requires_grad_() for name, part in parts.items()}

    def _flat(self, parts: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([part.reshape(*self.lead, -1) for part in parts], -1)

    def _train(self, leaves: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        """A training forward. Batch norm sees every row it is given, so padded rows are kept from it."""
        worn = self._statistics(next(iter(leaves.values())))
        axes, width = len(self.lead), batch.labels.shape[-1]
        if not (self.network.s and self.rows_may_pad(width)):
            return self.network.run(leaves, worn, batch.inputs, self.lead, train=True)
        counts = batch.real.sum(-1).reshape(-1)
        outputs = moved = None
        flat = {name: leaf.reshape(-1, *leaf.shape[axes:]) for name, leaf in leaves.items()}
        rows, kept = batch.inputs.reshape(-1, *batch.inputs.shape[axes:]), worn.reshape(-1, self.network.s)
        for count in sorted(set(counts.tolist())):
            # Clients with equally many real rows (they come first) go together.
            who = (counts == count).nonzero().squeeze(-1)
            if count == 0:
                continue
            some = {name: leaf[who] for name, leaf in flat.items()}
            part, after = self.network.run(
                some, kept[who], rows[who, :count], torch.Size([len(who)]), train=True
            )
            if outputs is None or moved is None:
                outputs, moved = part.new_zeros(len(counts), width, part.shape[-1]), kept.clone()
            outputs = outputs.index_copy(0, who, pad(part, (0, 0, 0, width - count)))
            moved = moved.index_copy(0, who, after)
        assert outputs is not None
        assert moved is not None
        return outputs.reshape(*self.lead, width, -1), moved.reshape(*self.lead, self.network.s)


def _slope(loss: Loss, batch: Batch) -> Callable[[Tensor], Tensor]:
    """The slopes of any loss with respect to the scores, by autograd."""

    def slope(outputs: Tensor) -> Tensor:
        leaf = outputs.view(*batch.labels.shape, -1).requires_grad_()
        with torch.enable_grad():
            total = loss(leaf, batch.labels, batch.real).sum()
        return torch.autograd.grad(total, leaf)[0].view_as(outputs)

    return slope


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    """Rows (*lead, m) out of a table (*lead, width, *shape): (*lead, m, *shape).

    The table is read as one list of rows, which is many times faster than `gather`; it is not copied even if
    the stack is a slice of a larger one or repeats the same rows.
    """
    axes = rows.ndim - 1
    strides, pace, shape = table.stride()[:axes], table.stride(axes), table.shape[axes + 1 :]
    if not table.numel() or not pace or any(stride % pace for stride in strides):
        return table.gather(axes, rows.view(*rows.shape, *(1,) * len(shape)).expand(*rows.shape, *shape))
    steps = tuple(stride // pace for stride in strides)
    length = table.shape[axes] + sum(
        (size - 1) * step for size, step in zip(table.shape, steps, strict=False)
    )
    flat = table.as_strided((length, *shape), (pace, *table.stride()[axes + 1 :]))
    first = _beginnings(table.shape[:axes], steps, rows.device)
    return flat.index_select(0, (first + rows).flatten()).view(*rows.shape, *shape)


@lru_cache(maxsize=64)
def _beginnings(sizes: torch.Size, steps: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each client's rows begin in the list of all, (*sizes, 1)."""
    first = torch.zeros((), dtype=torch.int64, device=device)
    for size, step in zip(sizes, steps, strict=True):
        first = first.unsqueeze(-1) + torch.arange(size, device=device) * step
    return first.unsqueeze(-1)

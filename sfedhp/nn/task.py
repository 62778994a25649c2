"""A client's task, or a whole stack of them: its data, mini-batches, gradients and scores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.keys import ROLES, choose, key
from sfedhp.core.types import Augment, Batch, Clock, Precision
from sfedhp.core.vectors import density
from sfedhp.nn import autograd, client_by_client, mlp
from sfedhp.nn.augmentation import augmented
from sfedhp.nn.conv.network import ConvNet
from sfedhp.nn.kernels import available
from sfedhp.nn.losses import Loss, cross_entropy, loss_grad_by_autograd, loss_grad_of
from sfedhp.nn.mlp import Layers, distinct_models
from sfedhp.nn.network import Network
from sfedhp.nn.parts import part
from sfedhp.nn.precision import computing
from sfedhp.nn.row_privacy import RowPrivacy, clipped_sum_by_autograd, clipped_sum_of_layers
from sfedhp.nn.rows import take_rows

DENSITY_THRESHOLD = 5e-4  # the default of τ


class GradientMethod(StrEnum):
    """Which module computes gradients: `nn.autograd`, `nn.client_by_client`, `nn.mlp` or `nn.conv`."""

    AUTOGRAD = "autograd"
    CLIENT_BY_CLIENT = "autograd, client by client"
    LINEAR = "linear layers by hand"
    CONVOLUTIONS = "convolutions by hand"


class GradientPath(NamedTuple):
    """How a task computes its gradients. As a string it is the line of a run's environment.json."""

    method: GradientMethod
    fused: bool = False  # whether fused GPU kernels are used
    reason: str = ""  # why they cannot run on this GPU; empty where they can, and where there is no GPU

    def __str__(self) -> str:
        if self.fused:
            what = "small products fused" if self.method is GradientMethod.LINEAR else "fused kernels"
            return f"{self.method}, {what}"
        return f"{self.method}, not fused: {self.reason}" if self.reason else str(self.method)


@dataclass
class Task:
    """The learning problems of a stack of clients; for one client alone the leading axes `...` are absent.

    A task holds no counter: what `batch` draws depends on the clock only. The engine lends it `statistics`
    for one step: a training forward replaces them by the moved ones and never uses their values.
    """

    network: Network
    inputs: Tensor  # (..., rows, *shape)
    labels: Tensor  # (..., rows, *target)
    sizes: Tensor  # (...): how many rows are real; the rest is padding
    stream: Tensor  # (...): the key of seed and client id
    batch_size: int  # 0: all rows
    weight_decay: float = 0.0
    statistics: Tensor | None = None  # (..., s)
    min_rows: int = 0  # a lower bound on the real rows of every client that has any; 0: unknown
    force_autograd: bool = False  # use autograd even where a pass written by hand exists
    classes: int = 0  # number of classes; for methods whose network does not end in class scores
    density_threshold: float = DENSITY_THRESHOLD  # τ: a smaller weight counts as zero
    augment: Augment = "none"  # of the inputs of mini-batches
    loss: Loss = cross_entropy  # ℓ
    precision: Precision = "float32"  # of the products of a client's step
    privacy: RowPrivacy | None = None  # clip gradients of rows and add noise to their sum; None: do not

    @property
    def lead(self) -> torch.Size:
        """The shape of the stack."""
        return self.sizes.shape

    @property
    def rows(self) -> int:
        """The rows of each client, padding included."""
        return self.inputs.shape[len(self.lead)]

    @property
    def layers(self) -> Layers:
        """The linear layers of the network, if `nn.mlp` computes its gradients; () otherwise."""
        rows_fit = self.network.flattens or self.inputs.ndim == len(self.lead) + 2
        return self.network.layers if rows_fit and not self.force_autograd else ()

    @property
    def convnet(self) -> ConvNet | None:
        """The network as a `ConvNet`, if `nn.conv` computes its gradients; None otherwise."""
        network = None if self.force_autograd else self.network.convnet
        return network if network and network.accepts(self.inputs.shape[len(self.lead) + 1 :]) else None

    @property
    def gradient_path(self) -> GradientPath:
        """Which implementation computes gradients, whether by fused kernels, and if not, why."""
        layers, convnet, device = self.layers, self.convnet, self.inputs.device
        if not layers and not convnet:
            return GradientPath(GradientMethod.CLIENT_BY_CLIENT if self._in_turn else GradientMethod.AUTOGRAD)
        method = GradientMethod.LINEAR if layers else GradientMethod.CONVOLUTIONS
        if layers and available.kernels_run_on(device):
            return GradientPath(method, fused=True)
        shape = self.inputs.shape[len(self.lead) + 1 :]
        if convnet and not self.may_pad and convnet.can_fuse(shape, device):
            return GradientPath(method, fused=True)
        reason = available.unavailable_reason(device) if device.type == "cuda" else ""
        return GradientPath(method, reason=reason)

    @property
    def _in_turn(self) -> bool:
        """Whether autograd goes through one client after the other."""
        return not self.force_autograd and self.network.runs_each_faster(self.inputs.device, self.lead)

    @property
    def may_pad(self) -> bool:
        """Whether a mini-batch may hold padding rows."""
        return self.rows_may_pad(min(self.batch_size or self.rows, self.rows))

    def rows_may_pad(self, rows: int) -> bool:
        """Whether some of the first `rows` rows of a client may be padding.

        Clients without any row are not considered: their results are never used.
        """
        return rows > self.min_rows

    def training(self) -> AbstractContextManager[object]:
        """While entered, products are computed in the task's precision; what evaluates is outside of it."""
        return computing(self.precision, self.inputs.device)

    def to(self, device: torch.device) -> Task:
        """The same task on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def map(self, function: Callable[[Tensor], Tensor]) -> Task:
        """The task with a function applied to every tensor of the stack, such as a slice or a reshape."""
        names = ("inputs", "labels", "sizes", "stream", "statistics")
        changes: dict[str, Any] = {name: getattr(self, name) for name in names}
        changes = {name: function(value) for name, value in changes.items() if value is not None}
        return replace(self, **changes)

    def batch(
        self,
        clock: Clock,
        step: int = 0,
        role: str = "batch",
        count: int | None = None,
        augment: bool = True,
    ) -> Batch:
        """A mini-batch of distinct rows, drawn by (seed, client id, role, clock, step) and nothing else.

        Args:
            clock: the cloud round and edge round.
            step: the number of the mini-batch within them.
            role: what the draw is for, a name of `core.keys.ROLES`; each has its own stream of draws.
            count: how many rows; None: `batch_size`. 0: all rows.
            augment: whether the rows are for training, so that the task's augmentation applies.
        """
        keys = key(self.stream, ROLES[role], clock.cloud_round, clock.edge_round, step)
        wanted = self.batch_size if count is None else count
        if not wanted:
            return self._augmented(self.everything()._replace(keys=keys), augment)
        rows, real = choose(keys, self.sizes, self.rows, wanted, self.rows_may_pad(self.rows))
        return self.take(rows, real, keys, augment)

    def take(
        self, rows: Tensor, real: Tensor, keys: Tensor, augment: bool = True, clients: Tensor | None = None
    ) -> Batch:
        """The rows of these numbers (..., count), of all clients or of those with numbers `clients`."""
        one_each = self.labels.ndim == len(self.lead) + 1 and clients is None
        taken = partial(take_rows, rows=rows, lead=self.lead, clients=clients)
        labels = self.labels.gather(-1, rows) if one_each else taken(self.labels)
        return self._augmented(Batch(taken(self.inputs), labels, real, keys), augment)

    def everything(self) -> Batch:
        """All rows of every client, without a key: gradients on them are free of dropout."""
        rows = torch.arange(self.rows, device=self.labels.device)
        return Batch(self.inputs, self.labels, rows < self.sizes.unsqueeze(-1))

    def gradient(self, model: Tensor | Factored, batch: Batch, loss: Loss | None = None) -> Tensor:
        """∇ℓ(x; D) + μ x of every client, (..., d), where μ is the weight decay.

        Args:
            model: x, (..., d) or what expands to that.
            batch: D.
            loss: ℓ; None: the task's.
        """
        loss = loss or self.loss
        if self.privacy is not None:
            grads = self._private_gradient(self.privacy, dense(model), batch, loss)
        elif layers := self.layers:
            grads = self._mlp_gradient(layers, model, batch, loss)
        elif convnet := self.convnet:
            grads = self._convnet_gradient(convnet, dense(model), batch, loss)
        else:
            grads = self._autograd_gradient(dense(model), batch, loss)
        return grads.add_(dense(model), alpha=self.weight_decay) if self.weight_decay else grads

    def part(self, name: str) -> Tensor:
        """Which of the weights (d,) belong to `head`, `body`, `norm`, or to a part named like parameters."""
        return part(self.network, name, self.inputs.device)

    def density(self, model: Tensor | Factored) -> Tensor:
        """The share (...) of weights of models (..., d) that do not count as zero."""
        return density(dense(model), self.density_threshold)

    def curvature(self, model: Tensor, batch: Batch, direction: Tensor, loss: Loss | None = None) -> Tensor:
        """(∇²ℓ(x; D) + μ I) v of every client for a direction v (..., d): (..., d); ℓ as in `gradient`."""
        statistics, may_pad = self._statistics(model), self.rows_may_pad(batch.real.shape[-1])
        loss = loss or self.loss
        products = autograd.hessian_product(self.network, model, statistics, batch, direction, loss, may_pad)
        return products + self.weight_decay * direction

    def scores(self, model: Tensor | Factored, inputs: Tensor) -> Tensor:
        """Scores (..., rows, outputs) in evaluation mode; models are (..., d), inputs (..., rows, *shape)."""
        if layers := self.layers:
            rows = inputs.reshape(self.lead.numel(), inputs.shape[len(self.lead)], -1)
            models = mlp.stack_models(layers, model, self.lead, rows.shape[1])
            outputs = mlp.forward(layers, models, rows)[-1]
            return outputs.view(*self.lead, *outputs.shape[1:])
        flat = dense(model).expand(*self.lead, self.network.d)
        statistics = self._statistics(flat)
        if convnet := self.convnet:
            # Clients that share both a model and its statistics are scored as one.
            flat = distinct_models(flat, self.lead)
            statistics = distinct_models(statistics, self.lead) if self.network.s else flat[:, :0]
            distinct = max(len(flat), len(statistics))
            rows = inputs.reshape(distinct, -1, *inputs.shape[len(self.lead) + 1 :])
            statistics = statistics.repeat_interleave(distinct // len(statistics), 0)
            return convnet.scores(flat, statistics, rows).view(*inputs.shape[: len(self.lead) + 1], -1)
        return autograd.scores(self.network, flat, statistics, inputs, self.lead)

    def _mlp_gradient(self, layers: Layers, model: Tensor | Factored, batch: Batch, loss: Loss) -> Tensor:
        """∇ℓ (..., d) by `nn.mlp`."""
        rows = batch.inputs.reshape(self.lead.numel(), batch.real.shape[-1], -1)
        may_pad = self.rows_may_pad(rows.shape[1])
        loss_grad = loss_grad_of(loss, batch, rows, layers[-1].outputs, may_pad=may_pad)
        models = mlp.stack_models(layers, model, self.lead, rows.shape[1])
        grads = mlp.gradient(layers, models, rows, loss_grad)
        return grads.view(*self.lead, -1)

    def _private_gradient(self, privacy: RowPrivacy, model: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """The noisy mean of clipped gradients (..., d)."""
        if layers := self.layers:
            rows = batch.inputs.reshape(self.lead.numel(), batch.real.shape[-1], -1)
            models = mlp.stack_models(layers, model, self.lead, rows.shape[1])
            total = clipped_sum_of_layers(layers, models, rows, batch, loss, privacy.clip)
        else:
            total = clipped_sum_by_autograd(
                self.network, model.expand(*self.lead, -1), batch, loss, privacy.clip
            )
        return privacy.noisy_mean(total.view(*self.lead, -1), batch)

    def _convnet_gradient(self, convnet: ConvNet, model: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """∇ℓ (..., d) by `nn.conv`; updates the statistics."""
        clients, axes = self.lead.numel(), len(self.lead)
        flat = batch.map(lambda part: part.reshape(clients, *part.shape[axes:]))
        grads, moved = convnet.gradient(
            distinct_models(model, self.lead),
            self._statistics(model).reshape(clients, self.network.s),
            flat,
            may_pad=self.rows_may_pad(batch.real.shape[-1]),
            loss_grad=None if loss is cross_entropy else loss_grad_by_autograd(loss, batch),
        )
        if self.network.s:
            self.statistics = moved.view(*self.lead, -1)
        return grads.view(*self.lead, -1)

    def _autograd_gradient(self, model: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """∇ℓ (..., d) by autograd; updates the statistics."""
        statistics, may_pad = self._statistics(model), self.rows_may_pad(batch.real.shape[-1])
        if self._in_turn:
            grads, moved = client_by_client.gradient(self.network, model, statistics, batch, loss)
        else:
            grads, moved = autograd.gradient(self.network, model, statistics, batch, loss, may_pad)
        if self.network.s:
            self.statistics = moved
        return grads

    def _augmented(self, batch: Batch, augment: bool) -> Batch:
        """The batch with its images cropped and flipped, if asked for and the task says so."""
        if not augment or self.augment == "none" or batch.keys is None:
            return batch
        return batch._replace(inputs=augmented(batch.inputs, batch.keys, self.augment))

    def _statistics(self, model: Tensor) -> Tensor:
        """The statistics (..., s); zeros if none were lent."""
        # A network without statistics gets an expanded tensor, so that all clients count as sharing one.
        if self.statistics is None or not self.network.s:
            return model.new_zeros(()).expand(*self.lead, self.network.s)
        return self.statistics

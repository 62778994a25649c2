"""DP-SGD: the gradient of each row is clipped, and noise is added to their sum.

Deep Learning with Differential Privacy.
M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang. ACM CCS 2016, Algorithm 1.
https://arxiv.org/abs/1607.00133
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sfedhp.core.keys import ROLES, key
from sfedhp.core.noise import KEYED, Normals
from sfedhp.core.types import Batch
from sfedhp.nn import autograd, mlp
from sfedhp.nn.losses import Loss, loss_grad_of
from sfedhp.nn.matmul import relu_backward
from sfedhp.nn.mlp import Layers, StackedModels
from sfedhp.nn.network import Network

_AT_ONCE: Final = 2**22  # numbers of a client's row gradients that are in memory together, by autograd


@dataclass(frozen=True)
class RowPrivacy:
    """How a client's gradients are protected."""

    clip: float  # C, the longest gradient of a row
    noise: float  # σ, the deviation of the noise on their sum, in units of C
    normals: Normals = KEYED

    def noisy_mean(self, total: Tensor, batch: Batch) -> Tensor:
        """1/B (Σ_i g_i + σ C ξ), (..., d), for a sum of clipped gradients; ξ follows from the batch's key."""
        assert batch.keys is not None, "private gradients are for mini-batches that were drawn"
        keys = key(batch.keys, ROLES["noise"])
        noise = self.normals(keys, total.shape[-1], total.dtype)
        rows = batch.real.sum(-1, keepdim=True).clamp_min(1)
        return (total + self.clip * self.noise * noise) / rows


def clipped_sum_of_layers(
    layers: Layers, models: StackedModels, rows: Tensor, batch: Batch, loss: Loss, clip: float
) -> Tensor:
    """Σ_i g_i min(1, C/‖g_i‖) over the real rows of each client, (clients, d), for linear layers and ReLU.

    The gradient of row i in a layer is δ_i h_iᵀ, and δ_i for the bias. So its norm is
    ‖δ_i‖ √(‖h_i‖² + 1), and no gradient of a row is ever built.

    Args:
        layers: of the network.
        models: (groups, d).
        rows: the batch's inputs, (clients, rows, features).
        batch: of the whole stack.
        loss: ℓ.
        clip: C.
    """
    *inputs, scores = mlp.forward(layers, models, rows)
    alone = _rows_alone(batch, len(batch.real.shape))
    shape = scores.shape
    loss_grad = loss_grad_of(loss, alone, rows.reshape(-1, 1, rows.shape[-1]), shape[-1])
    grads = [loss_grad(scores.reshape(-1, 1, shape[-1])).view(shape)]
    for index in reversed(range(1, len(layers))):
        below = models.backward(layers[index], index, grads[-1])
        grads.append(relu_backward(below, inputs[index]))
    grads.reverse()
    squares = torch.stack(
        [
            delta.square().sum(-1) * (held.square().sum(-1) + 1)
            for delta, held in zip(grads, inputs, strict=True)
        ]
    )
    factors = _factors(squares.sum(0).sqrt(), batch.real.reshape(shape[:2]), clip).unsqueeze(-1)
    flat = models.flat.new_empty(rows.shape[0], models.flat.shape[-1])
    for layer, delta, held in zip(layers, grads, inputs, strict=True):
        kept = torch.where(factors > 0, delta * factors, 0.0)
        torch.bmm(kept.mT, held, out=layer.weight(flat))
        torch.sum(kept, 1, keepdim=True, out=layer.bias(flat))
    return flat


def clipped_sum_by_autograd(network: Network, model: Tensor, batch: Batch, loss: Loss, clip: float) -> Tensor:
    """Like `clipped_sum_of_layers`, (*lead, d), for any network without running statistics.

    Each row is computed as a separate client.
    """
    *lead, count = batch.real.shape
    at_once = max(1, min(count, _AT_ONCE // network.d))
    keys = None if batch.keys is None else key(batch.keys.unsqueeze(-1), torch.arange(count))
    total = model.new_zeros(*lead, network.d)
    axes = len(lead)
    alone = _rows_alone(batch, axes + 1)._replace(keys=keys)
    for first in range(0, count, at_once):

        def part(tensor: Tensor, first: int = first) -> Tensor:
            return tensor.narrow(axes, first, min(at_once, count - first))

        some = alone.map(part)
        here = some.real.shape[:-1]
        models = model.unsqueeze(-2).expand(*here, network.d)
        statistics = model.new_zeros(()).expand(*here, 0)
        grads, _ = autograd.gradient(network, models, statistics, some, loss, may_pad=False)
        factors = _factors(grads.norm(dim=-1), part(batch.real), clip).unsqueeze(-1)
        total += torch.where(factors > 0, grads * factors, 0.0).sum(-2)
    return total


def _rows_alone(batch: Batch, axes: int) -> Batch:
    """Every row as the only one of a client: an axis of one row behind the first `axes` axes."""
    return Batch(
        batch.inputs.unsqueeze(axes), batch.labels.unsqueeze(axes), torch.ones_like(batch.real).unsqueeze(-1)
    )


def _factors(norms: Tensor, real: Tensor, clip: float) -> Tensor:
    """min(1, C/‖g‖) for gradients of these norms; 0 for padding, and for one that overflowed."""
    factors = (clip / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)
    return torch.where(real & norms.isfinite(), factors, 0.0)

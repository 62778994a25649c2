"""A training pass through fused GPU kernels: matrix products, and a few kernels between them.

It computes the same as `BlockwisePass` with fewer reads and writes of the activations. It needs blocks of
convolution, batch or group norm, ReLU and pooling, images whose sides stay even, and batches without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.conv.block import Block
from sfedhp.nn.conv.convolve import Im2colConvolution
from sfedhp.nn.conv.norm import Norm
from sfedhp.nn.conv.passes import Head
from sfedhp.nn.kernels import available
from sfedhp.nn.mlp import Layers

if TYPE_CHECKING:
    from sfedhp.nn.kernels.norm_coefficients import NormCoefficients


class Saved(NamedTuple):
    """What a block saves for its backward; see `nn.kernels` for units and raw outputs."""

    columns: Tensor  # (clients, pixels, 9 · inputs)
    matrix: Tensor  # the weights, (groups, outputs, 9 · inputs)
    raw: Tensor  # the convolution's outputs, (units, rows, height, width, outputs)
    pooled: Tensor  # of those, (units, rows, height / 2, width / 2, outputs)
    coefficients: NormCoefficients


def can_fuse(blocks: Sequence[Block], shape: torch.Size, device: torch.device) -> bool:
    """Whether kernels exist for these blocks on images (channels, height, width), and run on this device."""
    even = not any(side % 2 ** len(blocks) for side in shape[1:])
    known = all(
        block.usual and block.pools and block.norm is not None and _groups_fit(block.norm) for block in blocks
    )
    return even and known and available.kernels_run_on(device)


class FusedPass:
    """A `TrainingPass` through the kernels."""

    def __init__(self, blocks: Sequence[Block], head: Layers, models: Tensor, batch: Batch):
        """Run the forward.

        Args:
            blocks: of the network.
            head: its linear layers.
            models: (groups, d).
            batch: of these clients; no row is padding.
        """
        from sfedhp.nn.kernels import im2col, norm_forward

        self.blocks, self.models = blocks, models
        clients, rows, _, height, width = batch.inputs.shape
        self.clients = clients
        self.batch_statistics: list[
            Tensor
        ] = []  # of the batch norms: mean and variance, (clients, 2 · channels)
        self.saved: list[Saved] = []
        pixels, coefficients = batch.inputs.contiguous(), None
        for block in blocks:
            norm = _norm(block)
            columns = im2col.im2col(pixels, coefficients, channels_first=coefficients is None)
            matrix = im2col.weight_matrices(models, block.start, norm.start, block.outputs, block.inputs)
            raw = torch.bmm(columns.view(models.shape[0], -1, columns.shape[-1]), matrix.mT)
            units = clients * rows if norm.groups else clients
            raw = raw.view(units, -1, height, width, block.outputs)
            pixels, moments = norm_forward.pool_with_moments(raw)
            places = (block.weight_end if block.biased else -1, norm.start)
            statistics = None if norm.groups else models.new_empty(clients, 2, norm.channels)
            coefficients = norm_forward.norm_coefficients(
                moments, pixels, models, places, norm.epsilon, _group_channels(norm), statistics
            )
            self.saved.append(Saved(columns, matrix, raw, pixels, coefficients))
            self.batch_statistics += [] if statistics is None else [statistics.flatten(1)]
            height, width = height // 2, width // 2
        assert coefficients is not None
        scale, shift = (part[:, None, None, None] for part in (coefficients.scale, coefficients.shift))
        outputs = torch.addcmul(shift, pixels, scale).relu_()
        self.head = Head(head, models, outputs.view(clients, rows, *outputs.shape[2:]))
        self.scores = self.head.scores

    def update_running_stats(self, running_stats: Tensor, momentum: float) -> None:
        """See `TrainingPass`."""
        if self.batch_statistics:
            running_stats.lerp_(torch.cat(self.batch_statistics, -1), momentum)

    def backward(self, score_grads: Tensor, flat_grad: Tensor) -> None:
        """See `TrainingPass`."""
        from sfedhp.nn.kernels import im2col, norm_backward

        clients, top = self.clients, True
        above = self.head.backward(score_grads, flat_grad).contiguous()
        for index in reversed(range(len(self.saved))):
            block, norm, saved = self.blocks[index], _norm(self.blocks[index]), self.saved.pop()
            grads, sums = norm_backward.pool_grad(above, saved.pooled, saved.coefficients, top)
            # Batch norm cancels the bias, so its gradient stays 0, and a client is one unit: the kernel
            # writes straight into `flat_grad`. With group norm a client's rows are units, and their sum is
            # written.
            biased = block.biased and norm.groups > 0
            first = block.weight_end if biased else norm.start
            own = flat_grad[:, first : norm.start + 2 * norm.channels]
            units = len(saved.pooled)
            parameter_grads = flat_grad.new_empty(units, own.shape[1]) if norm.groups else own
            correction = norm_backward.norm_grad_coefficients(
                sums,
                saved.coefficients,
                self.models,
                norm.start,
                saved.pooled,
                _group_channels(norm),
                parameter_grads,
                biased,
            )
            if norm.groups:
                torch.sum(parameter_grads.view(clients, -1, own.shape[1]), 1, out=own)
            raw_grads = norm_backward.raw_grad(saved.raw, grads, saved.coefficients, correction)
            raw_grads = raw_grads.view(clients, -1, block.outputs)
            splits = Im2colConvolution().splits(raw_grads.shape[1])
            partial = torch.bmm(
                raw_grads.view(clients * splits, -1, block.outputs).mT,
                saved.columns.view(clients * splits, -1, 9 * block.inputs),
            )
            partial = partial.view(clients, splits, block.outputs, -1)
            im2col.scatter_weight_grad(partial, self.models, norm.start, flat_grad, block.start, block.inputs)
            if index:
                above = torch.bmm(raw_grads.view(saved.matrix.shape[0], -1, block.outputs), saved.matrix)
            top = False


def _norm(block: Block) -> Norm:
    """The block's norm, which `can_fuse` has checked to exist."""
    assert block.norm is not None
    return block.norm


def _group_channels(norm: Norm) -> int:
    """How many consecutive channels share statistics."""
    return norm.channels // norm.groups if norm.groups else 1


def _groups_fit(norm: Norm) -> bool:
    """Whether the kernels can sum the norm's groups: equally large, and a power of two of channels in all."""
    return not norm.groups or (norm.channels & (norm.channels - 1) == 0 and norm.channels % norm.groups == 0)

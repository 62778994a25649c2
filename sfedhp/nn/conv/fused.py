"""A pass through fused GPU kernels: matrix products, and a few kernels between them.

The same numbers as block by block, with the activations read and written less often. For blocks of
convolution, batch or group norm, ReLU and pooling on images of even sides, without rows that only pad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.conv.block import Block
from sfedhp.nn.conv.convolve import Columns
from sfedhp.nn.conv.norm import Norm
from sfedhp.nn.conv.passes import Head
from sfedhp.nn.kernels import available
from sfedhp.nn.mlp import Layers


class Left(NamedTuple):
    """What a block's backward needs of its forward."""

    read: Tensor  # columns, (clients, pixels, 9 · inputs)
    matrix: Tensor  # weights, (groups, outputs, 9 · inputs)
    raw: Tensor  # the convolution's outputs, (units, rows, height, width, outputs)
    largest: Tensor  # the pooled of them
    numbers: Tensor  # how the norm works on them, (units, 5, outputs)


def usable(blocks: Sequence[Block], shape: torch.Size, device: torch.device) -> bool:
    """Whether there are kernels for these blocks on images (channels, height, width), and for this device."""
    even = not any(side % 2 ** len(blocks) for side in shape[1:])
    known = all(block.pools and block.norm is not None and _divides(block.norm) for block in blocks)
    return even and known and available.kernels_run_on(device)


class FusedPass:
    """See `passes.Passing`."""

    def __init__(self, blocks: Sequence[Block], head: Layers, models: Tensor, batch: Batch):
        """Go forward.

        Args:
            blocks: of the network.
            head: its linear layers.
            models: (groups, d).
            batch: of these clients; every row is real.
        """
        from sfedhp.nn.kernels import im2col, norm_forward

        self.blocks, self.models = blocks, models
        clients, rows, _, height, width = batch.inputs.shape
        self.clients = clients
        self.seen: list[Tensor] = []  # by the batch norms: mean and variance, (clients, 2, channels)
        self.left: list[Left] = []
        pixels, numbers = batch.inputs.contiguous(), None
        for block in blocks:
            norm = _norm(block)
            read = im2col.columns(pixels, numbers, channels_first=numbers is None)
            matrix = im2col.matrices(models, block.first, norm.first, block.outputs, block.inputs)
            raw = torch.bmm(read.view(models.shape[0], -1, read.shape[-1]), matrix.mT)
            units = clients * rows if norm.groups else clients
            raw = raw.view(units, -1, height, width, block.outputs)
            pixels, parts = norm_forward.pool(raw)
            places = (block.end if block.biased else -1, norm.first)
            seen = None if norm.groups else models.new_empty(clients, 2, norm.channels)
            numbers = norm_forward.settle(parts, pixels, models, places, norm.epsilon, _size(norm), seen)
            self.left.append(Left(read, matrix, raw, pixels, numbers))
            self.seen += [] if seen is None else [seen.flatten(1)]
            height, width = height // 2, width // 2
        assert numbers is not None
        scale, shift = numbers[:, 2, None, None, None], numbers[:, 3, None, None, None]
        outputs = torch.addcmul(shift, pixels, scale).relu_()
        self.head = Head(head, models, outputs.view(clients, rows, *outputs.shape[2:]))
        self.scores = self.head.scores

    def move(self, worn: Tensor, momentum: float) -> None:
        """See `Passing`."""
        if self.seen:
            worn.lerp_(torch.cat(self.seen, -1), momentum)

    def descend(self, slopes: Tensor, flat: Tensor) -> None:
        """See `Passing`."""
        from sfedhp.nn.kernels import im2col, norm_backward

        clients, top = self.clients, True
        above = self.head.descend(slopes, flat).contiguous()
        for turn in reversed(range(len(self.left))):
            block, norm, left = self.blocks[turn], _norm(self.blocks[turn]), self.left.pop()
            slopes, parts = norm_backward.fold(above, left.largest, left.numbers, top)
            # A batch norm takes away whatever the bias adds, and all of a client's sums are one unit's.
            biased = block.biased and norm.groups > 0
            own = flat[:, block.end if biased else norm.first : norm.first + 2 * norm.channels]
            sums = flat.new_empty(len(left.numbers), own.shape[1]) if norm.groups else own
            rest = norm_backward.owe(
                parts, left.numbers, self.models, norm.first, left.largest, _size(norm), sums, biased
            )
            if norm.groups:
                torch.sum(sums.view(clients, -1, own.shape[1]), 1, out=own)
            below = norm_backward.spread(left.raw, slopes, left.numbers, rest).view(
                clients, -1, block.outputs
            )
            count = Columns().pieces(below.shape[1])
            split = (clients * count, -1)
            found = torch.bmm(below.view(*split, block.outputs).mT, left.read.view(*split, 9 * block.inputs))
            found = found.view(clients, count, block.outputs, -1)
            im2col.gather(found, self.models, norm.first, flat, block.first, block.inputs)
            if turn:
                above = torch.bmm(below.view(left.matrix.shape[0], -1, block.outputs), left.matrix)
            top = False


def _norm(block: Block) -> Norm:
    assert block.norm is not None
    return block.norm


def _size(norm: Norm) -> int:
    """How many channels in a row share statistics."""
    return norm.channels // norm.groups if norm.groups else 1


def _divides(norm: Norm) -> bool:
    """Whether groups of channels are such as kernels can sum: as many as a power of two, each of as many."""
    return not norm.groups or (norm.channels & (norm.channels - 1) == 0 and norm.channels % norm.groups == 0)

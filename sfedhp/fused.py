"""A pass through fused GPU kernels: matrix products, and two or three kernels between them.

The same numbers as block by block, with the activations read and written a third as often. For blocks of
convolution, batch norm, ReLU and pooling on images of even sides, without rows that only pad.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.blocks import Block
from sfedhp.filters import Columns
from sfedhp.normalization import Norm
from sfedhp.passes import Head
from sfedhp.perceptron import Layers
from sfedhp.types import Batch


class Left(NamedTuple):
    """What a block's backward needs of its forward."""

    read: Tensor  # columns, (clients, pixels, 9 · inputs)
    matrix: Tensor  # weights, (groups, outputs, 9 · inputs)
    raw: Tensor  # the convolution's outputs, (clients, rows, height, width, outputs)
    largest: Tensor  # the pooled of them
    numbers: Tensor  # how the norm works on them


def usable(blocks: Sequence[Block], shape: torch.Size, device: torch.device) -> bool:
    """Whether there are kernels for these blocks on images (channels, height, width), and for this device."""
    even = not any(side % 2 ** len(blocks) for side in shape[1:])
    known = all(block.pools and block.norm is not None and not block.norm.groups for block in blocks)
    return device.type == "cuda" and even and known and not obstacle(device)


@cache
def obstacle(device: torch.device) -> str:
    """Why kernels cannot run on a GPU, in words; empty where they can. The first call compiles one."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    from sfedhp import kernels

    try:
        kernels.pool(torch.zeros(1, 1, 2, 2, 1, device=device))
    except Exception as error:  # a missing compiler, an old driver: whatever it is, there is another way
        return f"Triton cannot run here ({(str(error).strip() or type(error).__name__).splitlines()[0]})"
    return ""


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
        from sfedhp import kernels  # only where Triton is

        self.kernels, self.blocks, self.models = kernels, blocks, models
        norms = [_norm(block) for block in blocks]
        clients, rows, _, height, width = batch.inputs.shape
        self.seen = models.new_empty(clients, sum(2 * norm.channels for norm in norms))
        self.left: list[Left] = []
        pixels, numbers = batch.inputs.contiguous(), None
        for block, norm in zip(blocks, norms, strict=True):
            read = kernels.columns(pixels, numbers, channels_first=numbers is None)
            matrix = kernels.matrices(models, block.first, norm.first, block.outputs, block.inputs)
            raw = torch.bmm(read.view(models.shape[0], -1, read.shape[-1]), matrix.mT)
            raw = raw.view(clients, rows, height, width, block.outputs)
            pixels, parts = kernels.pool(raw)
            places = (block.end if block.biased else -1, norm.first, norm.first + norm.channels)
            numbers = kernels.settle(parts, pixels, models, places, norm.epsilon, self.seen, norm.worn)
            self.left.append(Left(read, matrix, raw, pixels, numbers))
            height, width = height // 2, width // 2
        assert numbers is not None
        scale, shift = numbers[:, 2, None, None, None], numbers[:, 3, None, None, None]
        self.head = Head(head, models, torch.addcmul(shift, pixels, scale).relu_())
        self.scores = self.head.scores

    def move(self, worn: Tensor, momentum: float) -> None:
        """See `Passing`."""
        worn.lerp_(self.seen, momentum)

    def descend(self, slopes: Tensor, flat: Tensor) -> None:
        """See `Passing`."""
        kernels, top = self.kernels, True
        above = self.head.descend(slopes, flat)
        for turn in reversed(range(len(self.left))):
            block, norm = self.blocks[turn], _norm(self.blocks[turn])
            read, matrix, raw, largest, numbers = self.left.pop()
            slopes, rest = kernels.fold(above.contiguous(), largest, numbers, flat, norm.first, top)
            below = kernels.spread(raw, slopes, numbers, rest).flatten(1, 3)
            count = Columns().pieces(below.shape[1])
            split = (below.shape[0] * count, -1)
            found = torch.bmm(below.view(*split, block.outputs).mT, read.view(*split, read.shape[-1]))
            found = found.view(below.shape[0], count, block.outputs, -1)
            kernels.gather(found, self.models, norm.first, flat, block.first, block.inputs)
            if turn:
                above = torch.bmm(below.view(matrix.shape[0], -1, block.outputs), matrix)
            top = False


def _norm(block: Block) -> Norm:
    assert block.norm is not None
    return block.norm

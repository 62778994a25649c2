"""A training forward of some clients through blocks and linear layers, and the backward that may follow."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.conv.block import Block, Passed
from sfedhp.nn.conv.convolve import Filters
from sfedhp.nn.matmul import bend
from sfedhp.nn.mlp import Layers, Models, ascend


class Passing(Protocol):
    """A way to go forward and back."""

    scores: Tensor  # (clients, rows, outputs)

    def move(self, worn: Tensor, momentum: float) -> None:
        """Move the running statistics (clients, s), in place, by what the norms saw."""

    def descend(self, slopes: Tensor, flat: Tensor) -> None:
        """Write the gradients (clients, d), zeros till now, given the slopes of the scores."""


class Pass:
    """Block by block, for any of them."""

    def __init__(
        self,
        blocks: tuple[Block, ...],
        head: Layers,
        filters: Filters,
        models: Tensor,
        batch: Batch,
        padded: bool,
    ):
        """Go forward.

        Args:
            blocks: of the network.
            head: its linear layers.
            filters: how to convolve.
            models: (groups, d).
            batch: of these clients.
            padded: whether some rows may only pad; they enter no statistics then.
        """
        self.blocks, self.filters, self.models = blocks, filters, models
        self.real = batch.real if padded else None
        self.passed: list[Passed] = []
        rows = channels_last(batch.inputs)
        for block in blocks:
            self.passed.append(block.forward(filters, models, rows, self.real))
            rows = self.passed[-1].outputs
        self.head = Head(head, models, rows)
        self.scores = self.head.scores

    def move(self, worn: Tensor, momentum: float) -> None:
        """See `Passing`."""
        parts: list[Tensor] = []
        for block, passed in zip(self.blocks, self.passed, strict=True):
            if block.norm is not None and not block.norm.groups and passed.normalized is not None:
                parts += passed.normalized.measured()
        if parts:
            pace: float | Tensor = momentum
            if self.real is not None:  # nothing moves where there are no rows
                pace = self.real.any(-1, keepdim=True).to(worn.dtype) * pace
            worn.copy_(torch.lerp(worn, torch.cat(parts, -1), pace))

    def descend(self, slopes: Tensor, flat: Tensor) -> None:
        """See `Passing`."""
        slopes = self.head.descend(slopes, flat)
        clients, rows, height, width, channels = self.passed[-1].outputs.shape
        slopes = slopes.reshape(clients, rows, channels, height, width).permute(0, 1, 3, 4, 2)
        for turn in reversed(range(len(self.passed))):
            passed = self.passed.pop()
            slopes = self.blocks[turn].backward(
                self.filters, self.models, passed, slopes, flat, deeper=turn > 0
            )


class Head:
    """The linear layers on what the blocks leave, (clients, rows, height, width, channels)."""

    def __init__(self, layers: Layers, models: Tensor, rows: Tensor):
        self.layers, self.models = layers, models
        self.heights = ascend(layers, Models(models), features(rows))

    @property
    def scores(self) -> Tensor:
        """(clients, rows, outputs)."""
        return self.heights[-1]

    def descend(self, slopes: Tensor, flat: Tensor) -> Tensor:
        """Write the layers' gradients (clients, d); the slopes of the features, (clients, rows, features)."""
        for turn in reversed(range(len(self.layers))):
            layer = self.layers[turn]
            torch.bmm(slopes.mT, self.heights[turn], out=layer.weight(flat))
            torch.sum(slopes, 1, keepdim=True, out=layer.bias(flat))
            slopes = layer.backward(self.models, slopes)
            slopes = bend(slopes, self.heights[turn]) if turn else slopes
        return slopes


def channels_last(inputs: Tensor) -> Tensor:
    """Images (clients, rows, channels, height, width) with the channels last, also in memory."""
    return inputs.permute(0, 1, 3, 4, 2).contiguous()


def features(rows: Tensor) -> Tensor:
    """Images flattened as torch does, channels first: (clients, rows, features)."""
    return rows.permute(0, 1, 4, 2, 3).flatten(2)

"""Convolutional networks stacked over clients: forward and backward by hand.

Autograd over a stack runs grouped convolutions, which no device is good at, and passes over the activations
many times. Written out, a stack is about as fast as its convolutions are. Models are `(groups, d)`, a group
being as many consecutive clients as share a model; a batch has all clients along one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.conv import fused
from sfedhp.nn.conv.block import Block
from sfedhp.nn.conv.convolve import Columns, Direct, Filters
from sfedhp.nn.conv.passes import Pass, Passing, channels_last, features
from sfedhp.nn.mlp import CrossEntropy, Layers, Models, ascend

Slope = Callable[[Tensor], Tensor]


class Convolutions(NamedTuple):
    """A network of blocks, then linear layers with ReLU between on what is left, flattened; perhaps none."""

    blocks: tuple[Block, ...]
    head: Layers
    momentum: float  # of all running statistics; 0 where there are none

    def fits(self, shape: torch.Size) -> bool:
        """Whether inputs of this shape can be worked by hand."""
        if len(shape) != 3 or shape[0] != self.blocks[0].inputs:
            return False
        *pixels, last = self._pixels(shape)
        batch_norms = [block.norm is not None and not block.norm.groups for block in self.blocks]
        # One row of one pixel has no variance, which torch refuses.
        alone = any(norm and count < 2 for norm, count in zip(batch_norms, pixels, strict=True))
        features = self.blocks[-1].outputs * last
        return not alone and features > 0 and (not self.head or self.head[0].inputs == features)

    def fused(self, shape: torch.Size, device: torch.device) -> bool:
        """Whether there are fused kernels for a whole pass, of which no row only pads."""
        return fused.usable(self.blocks, shape, device)

    def gradient(
        self,
        models: Tensor,
        worn: Tensor,
        batch: Batch,
        *,
        padded: bool,
        slope: Slope | None = None,
        filters: Filters | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradients (clients, d) of a loss, and the running statistics after this batch (clients, s).

        Args:
            models: (groups, d).
            worn: (clients, s), the running statistics.
            batch: every client's real rows first.
            padded: whether some rows may only pad.
            slope: of the loss with respect to all clients' scores (clients, rows, outputs); None: of the mean
                cross-entropy.
            filters: how to convolve; None: as the device does best.
        """
        whole = filters is None and not padded and self.fused(batch.inputs.shape[2:], models.device)
        filters = filters or filters_for(models.device)
        clients, width = batch.labels.shape
        flat, moved = models.new_zeros(clients, models.shape[-1]), worn.clone()
        waiting = []
        for who, count in _pieces(filters, batch, clients // models.shape[0], padded):
            some = Batch(*(part[who, :count] for part in batch))
            own = _of(models, who, clients)
            work: Passing
            if whole:
                work = fused.FusedPass(self.blocks, self.head, own, some)
            else:
                work = Pass(self.blocks, self.head, filters, own, some, padded and not filters.rows)
            work.move(moved[who], self.momentum)
            if slope is None:
                work.descend(CrossEntropy(some, work.scores, work.scores.shape[-1])(work.scores), flat[who])
            else:
                waiting.append((work, who, count))
        if slope is not None and waiting:
            scores = models.new_zeros(clients, width, waiting[0][0].scores.shape[-1])
            for work, who, count in waiting:
                scores[who, :count] = work.scores
            above = slope(scores)
            for work, who, count in waiting:
                work.descend(above[who, :count], flat[who])
        return flat, moved

    def scores(
        self, models: Tensor, worn: Tensor, inputs: Tensor, *, filters: Filters | None = None
    ) -> Tensor:
        """What models say of inputs (clients, rows, *shape): (clients, rows, outputs).

        Args:
            models: (groups, d).
            worn: (clients, s), the running statistics, which batch norm uses instead of the rows.
            inputs: as many as there are; they are taken in pieces, so that columns do not fill the memory.
            filters: how to convolve; None: as the device does best.
        """
        filters = filters or filters_for(models.device)
        clients = inputs.shape[0]
        widest = max(
            9 * block.inputs * count
            for block, count in zip(self.blocks, self._pixels(inputs.shape[2:]), strict=False)
        )
        together = 1 if filters.rows else clients
        most = max(1, filters.room // (together * widest))
        parts = []
        for first in range(0, clients, together):
            who = slice(first, first + together)
            own = _of(models, who, clients)
            rows = torch.split(inputs[who], most, 1)
            parts.append(torch.cat([self._predict(filters, own, worn[who], some) for some in rows], 1))
        return torch.cat(parts)

    def _predict(self, filters: Filters, models: Tensor, worn: Tensor, inputs: Tensor) -> Tensor:
        rows = channels_last(inputs)
        for block in self.blocks:
            rows = block.predict(filters, models, worn, rows)
        return ascend(self.head, Models(models), features(rows))[-1]

    def _pixels(self, shape: torch.Size) -> list[int]:
        """Of the images that every block sees, then of what the last one leaves."""
        height, width = shape[1:]
        pixels = [height * width]
        for block in self.blocks:
            if block.pools:
                height, width = height // 2, width // 2
            pixels.append(height * width)
        return pixels


def filters_for(device: torch.device) -> Filters:
    """How this device convolves best."""
    return Direct() if device.type == "cpu" else Columns()


def _pieces(filters: Filters, batch: Batch, share: int, padded: bool) -> Iterator[tuple[slice, int]]:
    """Which clients to work on together, and how many of their rows.

    They are consecutive, have equally many rows, and share a model where several do.
    """
    clients, width = batch.labels.shape
    if not filters.rows:
        yield slice(0, clients), width
        return
    counts = batch.real.sum(-1).tolist() if padded else [width] * clients
    first = 0
    while first < clients:
        last, end = first + 1, clients if share == 1 else (first // share + 1) * share
        most = first + filters.rows // max(counts[first], 1)
        while last < min(end, most) and counts[last] == counts[first]:
            last += 1
        if counts[first]:
            yield slice(first, last), counts[first]
        first = last


def _of(models: Tensor, who: slice, clients: int) -> Tensor:
    """The models (groups, d) of some clients."""
    share = clients // models.shape[0]
    return models[who.start // share : -(-who.stop // share)]

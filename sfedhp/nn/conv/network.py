"""Convolutional networks stacked over clients: forward and backward pass written by hand.

Autograd over a stack runs grouped convolutions, which are slow on every device, and passes over the
activations many times. Written by hand, a stack is about as fast as its convolutions. Models are (groups, d),
where a group is a run of consecutive clients that share a model; a batch has all clients along one axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.conv import fused
from sfedhp.nn.conv.block import Block
from sfedhp.nn.conv.convolve import Convolution, DirectConvolution, Im2colConvolution
from sfedhp.nn.conv.passes import BlockwisePass, TrainingPass, channels_last, flatten_features
from sfedhp.nn.losses import CrossEntropyGrad, LossGrad
from sfedhp.nn.mlp import Layers, StackedModels, forward


class ConvNet(NamedTuple):
    """Blocks, a flattening, then linear layers with ReLU between (perhaps none)."""

    blocks: tuple[Block, ...]
    head: Layers
    momentum: float  # of all running statistics; 0 if there are none
    dropout: tuple[float, ...] = ()  # before each linear layer
    unflattens: bool = False  # whether images come without an axis of channels

    @property
    def drops(self) -> bool:
        """Whether a block or the head has dropout."""
        return any(self.dropout) or any(block.dropout for block in self.blocks)

    def accepts(self, shape: torch.Size) -> bool:
        """Whether inputs of this shape (channels, height, width) go through the network."""
        if self.unflattens:
            shape = torch.Size([1, *shape])
        if len(shape) != 3 or shape[0] != self.blocks[0].inputs:
            return False
        *convolved, last = self._pixels(shape)
        batch_norms = [block.norm is not None and not block.norm.groups for block in self.blocks]
        # Torch rejects batch norm of a single value, which a batch of one row with one pixel would be.
        single = any(norm and count < 2 for norm, count in zip(batch_norms, convolved, strict=True))
        features = self.blocks[-1].outputs * last
        fits = not self.head or self.head[0].inputs == features
        return not single and min(*convolved, last) > 0 and fits

    def can_fuse(self, shape: torch.Size, device: torch.device) -> bool:
        """Whether `gradient` uses fused kernels for such inputs on this device, if no row is padding."""
        return not self.drops and not self.unflattens and fused.can_fuse(self.blocks, shape, device)

    def gradient(
        self,
        models: Tensor,
        running_stats: Tensor,
        batch: Batch,
        *,
        may_pad: bool,
        loss_grad: LossGrad | None = None,
        convolution: Convolution | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradients (clients, d) of a loss, and the running statistics (clients, s) after this batch.

        Args:
            models: (groups, d).
            running_stats: (clients, s).
            batch: every client's real rows first.
            may_pad: whether rows may be padding.
            loss_grad: maps all clients' scores (clients, rows, outputs) to the gradients of the loss with
                respect to them; None: those of the mean cross-entropy.
            convolution: the implementation to use; None: the fastest on this device.
        """
        fuse = convolution is None and not may_pad and self.can_fuse(batch.inputs.shape[2:], models.device)
        convolution = convolution or convolution_for(models.device)
        inputs = batch.inputs.unsqueeze(2) if self.unflattens else batch.inputs
        clients, width = batch.real.shape
        flat_grad, moved = models.new_zeros(clients, models.shape[-1]), running_stats.clone()
        waiting = []
        for who, count in _chunks(convolution, batch, clients // models.shape[0], may_pad):
            some = Batch(inputs[who, :count], batch.labels[who, :count], batch.real[who, :count])
            if self.drops and batch.keys is not None:
                some = some._replace(keys=batch.keys[who])
            own = _models_of(models, who, clients)
            work: TrainingPass
            if fuse:
                work = fused.FusedPass(self.blocks, self.head, own, some)
            else:
                pads = may_pad and not convolution.rows_at_once
                work = BlockwisePass(self.blocks, self.head, convolution, own, some, pads, self.dropout)
            work.update_running_stats(moved[who], self.momentum)
            if loss_grad is None:
                grads = CrossEntropyGrad(some, work.scores, work.scores.shape[-1])(work.scores)
                work.backward(grads, flat_grad[who])
            else:
                waiting.append((work, who, count))
        if loss_grad is not None and waiting:
            scores = models.new_zeros(clients, width, waiting[0][0].scores.shape[-1])
            for work, who, count in waiting:
                scores[who, :count] = work.scores
            score_grads = loss_grad(scores)
            for work, who, count in waiting:
                work.backward(score_grads[who, :count], flat_grad[who])
        return flat_grad, moved

    def scores(
        self, models: Tensor, running_stats: Tensor, inputs: Tensor, *, convolution: Convolution | None = None
    ) -> Tensor:
        """Scores (clients, rows, outputs) in evaluation mode.

        Args:
            models: (groups, d).
            running_stats: (clients, s), which batch norm uses.
            inputs: (clients, rows, *shape), any number of rows; they are processed in pieces to bound memory.
            convolution: the implementation to use; None: the fastest on this device.
        """
        convolution = convolution or convolution_for(models.device)
        inputs = inputs.unsqueeze(2) if self.unflattens else inputs
        clients = inputs.shape[0]
        widest = max(
            math.prod(block.window.kernel) * block.inputs * count
            for block, count in zip(self.blocks, self._pixels(inputs.shape[2:]), strict=False)
        )
        together = 1 if convolution.rows_at_once else clients
        rows_at_once = max(1, convolution.max_columns // (together * widest))
        parts = []
        for first in range(0, clients, together):
            who = slice(first, first + together)
            own, stats = _models_of(models, who, clients), running_stats[who]
            pieces = torch.split(inputs[who], rows_at_once, 1)
            parts.append(torch.cat([self._predict(convolution, own, stats, piece) for piece in pieces], 1))
        return torch.cat(parts)

    def _predict(
        self, convolution: Convolution, models: Tensor, running_stats: Tensor, inputs: Tensor
    ) -> Tensor:
        """The scores (clients, rows, outputs) of one piece of the inputs."""
        rows = channels_last(inputs)
        for block in self.blocks:
            rows = block.predict(convolution, models, running_stats, rows)
        return forward(self.head, StackedModels(models), flatten_features(rows))[-1]

    def _pixels(self, shape: torch.Size) -> list[int]:
        """Pixels of the images that each convolution gives, then of those that the last block gives.

        They are 0 if a window does not fit.
        """
        image, pixels = (shape[1], shape[2]), []
        for block in self.blocks:
            convolved, image = block.sizes(image)
            pixels.append(_area(convolved))
        return [*pixels, _area(image)]


def _area(size: tuple[int, int]) -> int:
    """Pixels of an image of this height and width."""
    return max(size[0], 0) * max(size[1], 0)


def convolution_for(device: torch.device) -> Convolution:
    """The fastest implementation of the convolution on this device."""
    return DirectConvolution() if device.type == "cpu" else Im2colConvolution()


def _chunks(
    convolution: Convolution, batch: Batch, members: int, may_pad: bool
) -> Iterator[tuple[slice, int]]:
    """The clients to process together, and how many rows of each.

    Clients of a chunk are consecutive, have equally many real rows, and share a model if `members` > 1.
    """
    clients, width = batch.real.shape
    if not convolution.rows_at_once:
        yield slice(0, clients), width
        return
    counts = batch.real.sum(-1).tolist() if may_pad else [width] * clients
    first = 0
    while first < clients:
        last, end = first + 1, clients if members == 1 else (first // members + 1) * members
        most = first + convolution.rows_at_once // max(counts[first], 1)
        while last < min(end, most) and counts[last] == counts[first]:
            last += 1
        if counts[first]:
            yield slice(first, last), counts[first]
        first = last


def _models_of(models: Tensor, who: slice, clients: int) -> Tensor:
    """The models (groups, d) of a slice of the clients."""
    members = clients // models.shape[0]
    return models[who.start // members : -(-who.stop // members)]

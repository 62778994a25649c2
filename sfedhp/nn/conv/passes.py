"""A training forward of some clients through blocks and linear layers, and the backward that may follow."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sfedhp.core.types import Batch
from sfedhp.nn.conv.block import Block, Saved
from sfedhp.nn.conv.convolve import Convolution
from sfedhp.nn.conv.masks import NOTHING_DROPPED, Masks
from sfedhp.nn.matmul import relu_backward
from sfedhp.nn.mlp import Layers, StackedModels, forward


class TrainingPass(Protocol):
    """A forward that was run when the object was made, and its backward."""

    scores: Tensor  # (clients, rows, outputs)

    def update_running_stats(self, running_stats: Tensor, momentum: float) -> None:
        """Move the running statistics (clients, s) in place towards those of this batch."""

    def backward(self, score_grads: Tensor, flat_grad: Tensor) -> None:
        """Write the gradients of all parameters.

        Args:
            score_grads: gradients of the scores, (clients, rows, outputs).
            flat_grad: (clients, d), zeros before the call.
        """


class BlockwisePass:
    """A `TrainingPass` block by block, for all networks that `match_convnet` accepts."""

    def __init__(
        self,
        blocks: tuple[Block, ...],
        head: Layers,
        convolution: Convolution,
        models: Tensor,
        batch: Batch,
        may_pad: bool,
        dropout: tuple[float, ...] = (),
    ):
        """Run the forward.

        Args:
            blocks: of the network.
            head: its linear layers.
            convolution: the implementation to use.
            models: (groups, d).
            batch: of these clients.
            may_pad: whether rows may be padding; padding is then left out of all statistics.
            dropout: of the inputs of each layer of the head; empty: none.
        """
        self.masks = Masks(batch.keys)
        self.blocks, self.convolution, self.models = blocks, convolution, models
        self.real = batch.real if may_pad else None
        self.saved: list[Saved] = []
        rows = channels_last(batch.inputs)
        for block in blocks:
            self.saved.append(block.forward(convolution, models, rows, self.real, self.masks))
            rows = self.saved[-1].outputs
        self.head = Head(head, models, rows, self.masks, dropout)
        self.scores = self.head.scores

    def update_running_stats(self, running_stats: Tensor, momentum: float) -> None:
        """See `TrainingPass`."""
        parts: list[Tensor] = []
        for block, saved in zip(self.blocks, self.saved, strict=True):
            if block.norm is not None and not block.norm.groups and saved.norm is not None:
                parts += saved.norm.batch_statistics()
        if parts:
            weight: float | Tensor = momentum
            if self.real is not None:  # clients without rows keep theirs
                weight = self.real.any(-1, keepdim=True).to(running_stats.dtype) * weight
            running_stats.copy_(torch.lerp(running_stats, torch.cat(parts, -1), weight))

    def backward(self, score_grads: Tensor, flat_grad: Tensor) -> None:
        """See `TrainingPass`."""
        grads = self.head.backward(score_grads, flat_grad)
        clients, rows, height, width, channels = self.saved[-1].outputs.shape
        grads = grads.reshape(clients, rows, channels, height, width).permute(0, 1, 3, 4, 2)
        for index in reversed(range(len(self.saved))):
            saved = self.saved.pop()
            grads = self.blocks[index].backward(
                self.convolution, self.models, saved, grads, flat_grad, index > 0, self.masks
            )


class Head:
    """The linear layers on the outputs of the last block, (clients, rows, height, width, channels)."""

    def __init__(
        self,
        layers: Layers,
        models: Tensor,
        rows: Tensor,
        masks: Masks = NOTHING_DROPPED,
        dropout: tuple[float, ...] = (),
    ):
        self.layers, self.models, self.masks = layers, models, masks
        self.dropout = dropout or (0.0,) * len(layers)
        drop = self._drop if any(self.dropout) else None
        self.activations = forward(layers, StackedModels(models), flatten_features(rows), drop)

    @property
    def scores(self) -> Tensor:
        """The outputs of the last layer, (clients, rows, outputs)."""
        return self.activations[-1]

    def _drop(self, rows: Tensor, layer: int) -> Tensor:
        """The inputs of a layer, without what its dropout drops."""
        return self.masks.drop(rows, self.dropout[layer])

    def backward(self, grads: Tensor, flat_grad: Tensor) -> Tensor:
        """Write the layers' gradients to (clients, d); return those of the features, (clients, rows, -1)."""
        for index in reversed(range(len(self.layers))):
            layer = self.layers[index]
            torch.bmm(grads.mT, self.activations[index], out=layer.weight(flat_grad))
            torch.sum(grads, 1, keepdim=True, out=layer.bias(flat_grad))
            grads = self.masks.undrop(layer.backward(self.models, grads), self.dropout[index])
            grads = relu_backward(grads, self.activations[index]) if index else grads
        return grads


def channels_last(inputs: Tensor) -> Tensor:
    """Images (clients, rows, channels, height, width) with the channels last, also in memory."""
    return inputs.permute(0, 1, 3, 4, 2).contiguous()


def flatten_features(rows: Tensor) -> Tensor:
    """Images flattened in torch's order, channels first: (clients, rows, features)."""
    return rows.permute(0, 1, 4, 2, 3).flatten(2)

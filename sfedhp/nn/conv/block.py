"""The repeated part of a convolutional network, over a stack of clients.

It is a convolution, then perhaps a norm, ReLU, then perhaps max pooling and dropout.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.nn.conv.convolve import (
    HALVES,
    SAME,
    Convolution,
    Pooled,
    Window,
    add_unpooled,
    max_pool,
    unpooled,
)
from sfedhp.nn.conv.masks import NOTHING_DROPPED, Masks
from sfedhp.nn.conv.norm import Norm, NormState, per_pixel
from sfedhp.nn.matmul import relu_backward


class Saved(NamedTuple):
    """What a block saves for its backward; tensors are (clients, rows, height, width, channels)."""

    convolved: Tensor  # what the convolution saved
    raw: Tensor  # the convolution's outputs without its bias, times the signs of the norm's gains
    norm: NormState | None
    pooled: Pooled | None
    outputs: Tensor  # after ReLU and dropout
    image: tuple[int, int]  # height and width of the inputs


class Block(NamedTuple):
    """A convolution, perhaps a norm, ReLU, perhaps max pooling, perhaps dropout.

    Models are (groups, d); a group is a run of consecutive clients that share a model.
    """

    start: int  # offset of its weight (outputs, inputs, *kernel), then its bias, in the flat vector
    inputs: int
    outputs: int
    biased: bool
    norm: Norm | None
    pools: bool
    window: Window = SAME
    pooling: Window = HALVES  # only with pooling
    dropout: float = 0.0  # the probability that a number is dropped at the end

    @property
    def weight_end(self) -> int:
        """The index in the flat vector after the weight, where the bias begins if there is one."""
        height, width = self.window.kernel
        return self.start + height * width * self.outputs * self.inputs

    @property
    def usual(self) -> bool:
        """Whether it is a 3 × 3 convolution that keeps the size, without dropout, and pooling halves it."""
        return self.window == SAME and self.pooling == HALVES and not self.dropout

    def sizes(self, image: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of what the convolution gives for such images, and of what the block gives."""
        convolved = self.window.size(image)
        return convolved, self.pooling.size(convolved) if self.pools else convolved

    def weight(self, flat: Tensor) -> Tensor:
        """A view of the weight, (..., outputs, inputs, *kernel)."""
        weight = flat[..., self.start : self.weight_end]
        return weight.view(*flat.shape[:-1], self.outputs, self.inputs, *self.window.kernel)

    def bias(self, flat: Tensor) -> Tensor:
        """A view of the bias, (..., 1, outputs); zeros if there is none."""
        if not self.biased:
            return flat.new_zeros(()).expand(*flat.shape[:-1], 1, self.outputs)
        return flat[..., None, self.weight_end : self.weight_end + self.outputs]

    def forward(
        self,
        convolution: Convolution,
        models: Tensor,
        rows: Tensor,
        real: Tensor | None,
        masks: Masks = NOTHING_DROPPED,
    ) -> Saved:
        """A training forward: norms use the statistics of the rows.

        Args:
            convolution: the implementation to use.
            models: (groups, d).
            rows: (clients, rows, height, width, inputs).
            real: (clients, rows), which rows are not padding; None: all.
            masks: of dropout.
        """
        image = rows.shape[2], rows.shape[3]
        clients, signs, gain_and_offset = rows.shape[0], None, None
        if self.norm is not None:
            gain_and_offset = self.norm.gain_and_offset(models)
            # A norm is increasing or decreasing with the sign of its gain. With that sign in the weights it
            # is always increasing, so that max pooling, which only selects, can come before it. (Where a gain
            # is 0 all outputs are equal, and any choice is right.)
            signs = (
                torch.copysign(gain_and_offset.new_ones(()), gain_and_offset[:, 0]) if self.pools else None
            )
        raw, convolved = convolution.forward(self.weight(models), signs, rows, self.window)
        pooled = max_pool(raw, self.pooling) if self.pools else None
        chosen = raw if pooled is None else pooled.values
        bias = _per_client(self.bias(models), clients)
        if self.norm is None or gain_and_offset is None:
            outputs = masks.drop_pixels((chosen + per_pixel(bias)).relu_(), self.dropout)
            return Saved(convolved, raw, None, pooled, outputs, image)
        own = signs if signs is None else _per_client(signs.unsqueeze(1), clients)
        norm = NormState.measure(self.norm, _per_client(gain_and_offset, clients), bias, raw, own, real)
        outputs = masks.drop_pixels(norm.normalize(chosen).relu_(), self.dropout)
        return Saved(convolved, raw, norm, pooled, outputs, image)

    def backward(
        self,
        convolution: Convolution,
        models: Tensor,
        saved: Saved,
        grads: Tensor,
        flat_grad: Tensor,
        needs_input_grad: bool,
        masks: Masks = NOTHING_DROPPED,
    ) -> Tensor:
        """Gradients (clients, rows, height, width, inputs) of the inputs, given those of the outputs.

        Args:
            convolution: as in `forward`.
            models: as in `forward`.
            saved: the result of `forward`.
            grads: (clients, rows, height, width, outputs).
            flat_grad: (clients, d), zeros where the gradients of the block's parameters are written.
            needs_input_grad: whether the result is needed; if not, it is empty.
            masks: as in `forward`.
        """
        _, raw, norm, pooled, outputs, image = saved
        grads = relu_backward(masks.undrop(grads, self.dropout), outputs)
        if norm is None or self.norm is None:
            bias: Tensor | None = grads.sum((1, 2, 3)).unsqueeze(1)
            raw_grads = grads if pooled is None else unpooled(raw, pooled, grads, self.pooling)
        else:
            gain_and_offset, bias, correction = norm.backward(grads, raw if pooled is None else pooled.values)
            self.norm.gain_and_offset(flat_grad).copy_(gain_and_offset)
            grads, raw_grads = grads.mul_(per_pixel(norm.grad_scale)), correction(raw)
            if pooled is None:
                raw_grads = raw_grads.add_(grads)
            else:
                raw_grads = add_unpooled(raw_grads, pooled.indices, grads)
        if self.biased and bias is not None:
            self.bias(flat_grad).copy_(bias)
        return convolution.backward(
            self.weight(models),
            saved.convolved,
            raw_grads,
            self.weight(flat_grad),
            image if needs_input_grad else None,
            self.window,
        )

    def predict(
        self, convolution: Convolution, models: Tensor, running_stats: Tensor, rows: Tensor
    ) -> Tensor:
        """An evaluation forward: batch norm uses the running statistics.

        Args:
            convolution: the implementation to use.
            models: (groups, d).
            running_stats: (clients, s).
            rows: (clients, rows, height, width, inputs).

        Returns:
            The outputs, (clients, rows, height, width, outputs).
        """
        clients, weight, scale, shift = rows.shape[0], self.weight(models), None, self.bias(models)
        if self.norm is not None:
            if self.norm.groups:
                return self.forward(convolution, models, rows, None).outputs
            weight, shift, gain_and_offset = (
                _per_client(part, clients) for part in (weight, shift, self.norm.gain_and_offset(models))
            )
            affine = self.norm.from_running_stats(gain_and_offset, running_stats, shift)
            scale, shift = affine.scale.squeeze(1), affine.shift
        outputs, _ = convolution.forward(weight, scale, rows, self.window)
        outputs = max_pool(outputs, self.pooling).values if self.pools else outputs
        return outputs.add_(per_pixel(_per_client(shift, clients))).relu_()


def _per_client(numbers: Tensor, clients: int) -> Tensor:
    """What groups share, (groups, ...), repeated for every client, (clients, ...)."""
    members = clients // numbers.shape[0]
    return numbers.unsqueeze(1).expand(-1, members, *numbers.shape[1:]).flatten(0, 1)

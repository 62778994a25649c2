"""The repeated part of a convolutional network: convolution, norm, ReLU, pooling, over a stack of clients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.nn.conv.convolve import Filters, Pooled, add_picked, pool
from sfedhp.nn.conv.norm import Norm, Normalized, spread
from sfedhp.nn.matmul import bend


class Passed(NamedTuple):
    """What a block's backward needs of its forward; each (clients, rows, height, width, channels)."""

    read: Tensor  # what the filters want again
    raw: Tensor  # the convolution's outputs, without its bias, with the signs of the norm's gains
    normalized: Normalized | None
    pooled: Pooled | None
    outputs: Tensor  # after ReLU


class Block(NamedTuple):
    """A convolution of 3 × 3 that keeps the size, perhaps a norm, ReLU, perhaps pooling by 2 × 2.

    Models are (groups, d), a group being as many consecutive clients as share a model.
    """

    first: int  # where its weight (outputs, inputs, 3, 3) begins in the flat vector, then its bias
    inputs: int
    outputs: int
    biased: bool
    norm: Norm | None
    pools: bool

    def weight(self, flat: Tensor) -> Tensor:
        """(..., outputs, inputs, 3, 3), as a view."""
        weight = flat[..., self.first : self.end]
        return weight.view(*flat.shape[:-1], self.outputs, self.inputs, 3, 3)

    def bias(self, flat: Tensor) -> Tensor:
        """(..., 1, outputs), as a view; zeros where there is none."""
        if not self.biased:
            return flat.new_zeros(()).expand(*flat.shape[:-1], 1, self.outputs)
        return flat[..., None, self.end : self.end + self.outputs]

    def forward(self, filters: Filters, models: Tensor, rows: Tensor, real: Tensor | None) -> Passed:
        """Train: norms use the rows themselves, those that are `real` (clients, rows) where some are not."""
        clients, signs, pair = rows.shape[0], None, None
        if self.norm is not None:
            pair = self.norm.pair(models)
            # A norm rises or falls with its gain's sign. With that sign in the weights it only rises, and
            # pooling, which lets nothing but the largest pass, can come before it. (Where a gain is 0 all are
            # equally large, and any of them is as right as the first.)
            signs = torch.copysign(pair.new_ones(()), pair[:, 0]) if self.pools else None
        raw, read = filters.forward(self.weight(models), signs, rows)
        pooled = pool(raw) if self.pools else None
        chosen = raw if pooled is None else pooled.largest
        bias = _own(self.bias(models), clients)
        if self.norm is None or pair is None:
            return Passed(read, raw, None, pooled, (chosen + spread(bias)).relu_())
        own = signs if signs is None else _own(signs.unsqueeze(1), clients)
        normalized = Normalized.of(self.norm, _own(pair, clients), bias, raw, own, real)
        return Passed(read, raw, normalized, pooled, normalized.whole(chosen).relu_())

    def backward(
        self, filters: Filters, models: Tensor, passed: Passed, slopes: Tensor, flat: Tensor, deeper: bool
    ) -> Tensor:
        """The slopes of the block's inputs, given those of its outputs.

        Args:
            filters: those of the forward.
            models: likewise.
            passed: what the forward gave.
            slopes: (clients, rows, height, width, outputs).
            flat: (clients, d), zeros where the slopes of the block's own weights will be written.
            deeper: whether there is a block below that wants the slopes of the inputs.
        """
        _, raw, normalized, pooled, outputs = passed
        slopes = bend(slopes, outputs)
        if normalized is None or self.norm is None:
            bias: Tensor | None = slopes.sum((1, 2, 3)).unsqueeze(1)
            below = torch.zeros_like(raw)
        else:
            pair, bias, rest = normalized.backward(slopes, raw if pooled is None else pooled.largest)
            self.norm.pair(flat).copy_(pair)
            slopes, below = slopes.mul_(spread(normalized.steep)), rest(raw)
        below = below.add_(slopes) if pooled is None else add_picked(below, pooled.picks, slopes)
        if self.biased and bias is not None:
            self.bias(flat).copy_(bias)
        return filters.backward(self.weight(models), passed.read, below, self.weight(flat), deeper)

    def predict(self, filters: Filters, models: Tensor, worn: Tensor, rows: Tensor) -> Tensor:
        """The outputs where batch norm uses running statistics, (clients, s), instead of the rows."""
        clients, weight, scale, shift = rows.shape[0], self.weight(models), None, self.bias(models)
        if self.norm is not None:
            if self.norm.groups:
                return self.forward(filters, models, rows, None).outputs
            weight, shift, pair = (_own(part, clients) for part in (weight, shift, self.norm.pair(models)))
            folded = self.norm.folded(pair, worn, shift)
            scale, shift = folded.scale.squeeze(1), folded.shift
        heights, _ = filters.forward(weight, scale, rows)
        heights = pool(heights).largest if self.pools else heights
        return heights.add_(spread(_own(shift, clients))).relu_()

    @property
    def end(self) -> int:
        """Where the weight ends, and the bias begins if there is one."""
        return self.first + 9 * self.outputs * self.inputs


def _own(numbers: Tensor, clients: int) -> Tensor:
    """What groups share, (groups, ...), as every client's own, (clients, ...)."""
    members = clients // numbers.shape[0]
    return numbers.unsqueeze(1).expand(-1, members, *numbers.shape[1:]).flatten(0, 1)

"""3 × 3 convolutions and 2 × 2 pooling over a stack of clients, forward and backward.

Images are (clients, rows, height, width, channels), channels last. Weights are (groups, outputs, inputs, 3,
3) as in the flat vectors; a group is a run of consecutive clients that share a model. Images are padded with
zeros, so a convolution keeps their size. There are two implementations, for CPU and for GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad


class Convolution(Protocol):
    """A 3 × 3 convolution of every client with its own weight: forward and backward."""

    rows_at_once: int  # rows of several clients to work on together (a client with more goes alone); 0: all
    max_columns: int  # elements of im2col columns that may be held at once in a forward without backward

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs (clients, rows, height, width, outputs) without a bias, and what `backward` reads.

        Args:
            weight: (groups, outputs, inputs, 3, 3).
            scale: (groups, outputs), factors of the outputs; None: 1.
            rows: (clients, rows, height, width, inputs).
        """

    def backward(
        self, weight: Tensor, saved: Tensor, grads: Tensor, weight_grad: Tensor, needs_input_grad: bool
    ) -> Tensor:
        """Gradients of the rows, shaped as they are; the gradients of the weights are written.

        Args:
            weight: as in `forward`.
            saved: the second result of `forward`.
            grads: gradients of the outputs before scaling, (clients, rows, height, width, outputs).
            weight_grad: (clients, outputs, inputs, 3, 3), memory for the gradients of every client's weights.
            needs_input_grad: whether the gradients of the rows are needed; if not, the result is empty.
        """


class DirectConvolution:
    """Torch's own convolution, client by client: fastest on a CPU, whose caches are small."""

    rows_at_once = 200
    max_columns = 2**22

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `Convolution`; saves the rows."""
        matrices = _scaled(weight, scale).permute(0, 1, 4, 2, 3)
        outputs = rows.new_empty(*rows.shape[:-1], weight.shape[1])
        for own, (matrix, mine) in zip(outputs, _by_client(matrices, rows), strict=True):
            _channels_first(own).copy_(conv2d(_channels_first(mine), matrix, padding=1))
        return outputs, rows

    def backward(
        self, weight: Tensor, saved: Tensor, grads: Tensor, weight_grad: Tensor, needs_input_grad: bool
    ) -> Tensor:
        """See `Convolution`."""
        options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [needs_input_grad, True, False])
        rows = torch.empty_like(saved) if needs_input_grad else saved.new_empty(0)
        for client, (matrix, mine) in enumerate(_by_client(weight, saved)):
            below, own, _ = torch.ops.aten.convolution_backward(
                _channels_first(grads[client]), _channels_first(mine), matrix, *options
            )
            weight_grad[client] = own
            if needs_input_grad:
                _channels_first(rows[client]).copy_(below)
        return rows


class Im2colConvolution:
    """A batched matrix product for all clients, over columns with the 3 × 3 neighborhood of every pixel.

    Grouped convolutions are slow on a GPU, their backward most of all; batched products are not.
    """

    rows_at_once = 0
    max_columns = 2**27
    split_above = 1024  # pixels of a client from which its sum is split, so that the whole GPU works on it

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `Convolution`; saves the columns (clients, rows, height, width, 3, 3, inputs)."""
        around = pad(rows, (0, 0, 1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        columns = around.permute(0, 1, 2, 3, 5, 6, 4).contiguous()
        matrix = _scaled(weight, scale).flatten(2)
        outputs = torch.bmm(columns.view(matrix.shape[0], -1, matrix.shape[2]), matrix.mT)
        return outputs.view(*rows.shape[:-1], -1), columns

    def backward(
        self, weight: Tensor, saved: Tensor, grads: Tensor, weight_grad: Tensor, needs_input_grad: bool
    ) -> Tensor:
        """See `Convolution`."""
        matrix, clients = _scaled(weight, None).flatten(2), grads.shape[0]
        (_, outputs, width), pixels = matrix.shape, grads[0, ..., 0].numel()
        splits = self.splits(pixels)
        partial = torch.bmm(
            grads.view(clients * splits, -1, outputs).mT, saved.view(clients * splits, -1, width)
        )
        partial = partial.view(clients, splits, outputs, 3, 3, -1).permute(0, 1, 2, 5, 3, 4)
        torch.sum(partial, 1, out=weight_grad)
        return self._input_grad(matrix, grads) if needs_input_grad else grads.new_empty(0)

    def splits(self, pixels: int) -> int:
        """Into how many partial sums to split a client's sum Σ δᵀ X over this many pixels."""
        splits = 1
        while pixels // splits >= self.split_above and pixels % (2 * splits) == 0:
            splits *= 2
        return splits

    def _input_grad(self, matrix: Tensor, grads: Tensor) -> Tensor:
        """Gradients of the rows: for every pixel the sum over the nine neighborhoods it is part of."""
        clients, rows, height, width, outputs = grads.shape
        channels = matrix.shape[2] // 9
        around = torch.bmm(grads.view(matrix.shape[0], -1, outputs), matrix)
        around = around.view(clients, rows, height, width, 3, 3, channels)
        total = around.new_zeros(clients, rows, height + 2, width + 2, channels)
        for down in range(3):
            for right in range(3):
                there = total[:, :, down : down + height, right : right + width]
                there.add_(around[:, :, :, :, down, right])
        return total[:, :, 1:-1, 1:-1]


def _scaled(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Weights times the factors of the outputs, in the order of columns: (groups, outputs, 3, 3, inputs)."""
    ordered = weight.permute(0, 1, 3, 4, 2)
    if scale is None:
        return ordered.contiguous()
    return torch.mul(ordered, scale[..., None, None, None], out=ordered.new_empty(ordered.shape))


def _channels_first(rows: Tensor) -> Tensor:
    """A view of (..., height, width, channels) as (..., channels, height, width), the axes torch expects."""
    return rows.movedim(-1, -3)


def _by_client(weight: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Every client's weight (outputs, inputs, 3, 3) and rows (rows, height, width, inputs)."""
    members = rows.shape[0] // weight.shape[0]
    return ((weight[client // members], mine) for client, mine in enumerate(rows))


class Pooled(NamedTuple):
    """The result of 2 × 2 max pooling; both are (clients, rows, height / 2, width / 2, channels)."""

    values: Tensor
    indices: Tensor  # where each value was in its image of height · width pixels


def max_pool(rows: Tensor) -> Pooled:
    """2 × 2 max pooling of (clients, rows, height, width, channels); an odd last line or column is cut."""
    found = max_pool2d(_channels_first(rows.flatten(0, 1)), 2, return_indices=True)
    return Pooled(*(part.movedim(-3, -1).view(*rows.shape[:2], *part.shape[2:], -1) for part in found))


def add_unpooled(rows: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """Add values to the pixels that `max_pool` chose, in place, and return `rows`."""
    rows.flatten(2, 3).scatter_add_(2, indices.flatten(2, 3), values.flatten(2, 3))
    return rows

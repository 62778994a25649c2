"""Convolutions and max pooling over a stack of clients, forward and backward.

Images are (clients, rows, height, width, channels), channels last. Weights are (groups, outputs, inputs,
*kernel) as in the flat vectors; a group is a run of consecutive clients that share a model. There are two
implementations, for CPU and for GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad

Size: TypeAlias = tuple[int, int]  # height and width


class Window(NamedTuple):
    """How a convolution or a pooling moves over an image, in height and width."""

    kernel: Size
    stride: Size
    padding: Size  # with zeros, on both sides

    def size(self, image: Size) -> Size:
        """Height and width of the output."""
        height, width = (
            (side + 2 * around - size) // step + 1
            for side, size, step, around in zip(image, *self, strict=True)
        )
        return height, width


SAME: Final = Window((3, 3), (1, 1), (1, 1))  # a convolution that keeps the size
HALVES: Final = Window((2, 2), (2, 2), (0, 0))  # a pooling that halves it


class Convolution(Protocol):
    """A convolution of every client with its own weight: forward and backward."""

    rows_at_once: int  # rows of several clients to work on together (a client with more goes alone); 0: all
    max_columns: int  # elements of im2col columns that may be held at once in a forward without backward

    def forward(
        self, weight: Tensor, scale: Tensor | None, rows: Tensor, window: Window
    ) -> tuple[Tensor, Tensor]:
        """The outputs (clients, rows, height, width, outputs) without a bias, and what `backward` reads.

        Args:
            weight: (groups, outputs, inputs, *kernel).
            scale: (groups, outputs), factors of the outputs; None: 1.
            rows: (clients, rows, height, width, inputs).
            window: of the convolution.
        """

    def backward(
        self, weight: Tensor, saved: Tensor, grads: Tensor, out: Tensor, image: Size | None, window: Window
    ) -> Tensor:
        """Gradients of the rows, shaped as they are; the gradients of the weights are written to `out`.

        Args:
            weight: as in `forward`.
            saved: the second result of `forward`.
            grads: gradients of the outputs before scaling, (clients, rows, height, width, outputs).
            out: (clients, outputs, inputs, *kernel), memory for every client's gradients of weights.
            image: height and width of the rows, if their gradients are needed; None: the result is empty.
            window: of the convolution.
        """


class DirectConvolution:
    """Torch's own convolution, client by client: fastest on a CPU, whose caches are small."""

    rows_at_once = 200
    max_columns = 2**22

    def forward(
        self, weight: Tensor, scale: Tensor | None, rows: Tensor, window: Window
    ) -> tuple[Tensor, Tensor]:
        """See `Convolution`; saves the rows."""
        matrices = _scaled(weight, scale).permute(0, 1, 4, 2, 3)
        size = window.size((rows.shape[2], rows.shape[3]))
        outputs = rows.new_empty(*rows.shape[:2], *size, weight.shape[1])
        for own, (matrix, mine) in zip(outputs, _by_client(matrices, rows), strict=True):
            there = conv2d(_channels_first(mine), matrix, stride=window.stride, padding=window.padding)
            _channels_first(own).copy_(there)
        return outputs, rows

    def backward(
        self, weight: Tensor, saved: Tensor, grads: Tensor, out: Tensor, image: Size | None, window: Window
    ) -> Tensor:
        """See `Convolution`."""
        needs_input_grad = image is not None
        options = (None, [*window.stride], [*window.padding], [1, 1], False, [0, 0], 1)
        wanted = [needs_input_grad, True, False]
        rows = torch.empty_like(saved) if needs_input_grad else saved.new_empty(0)
        for client, (matrix, mine) in enumerate(_by_client(weight, saved)):
            below, own, _ = torch.ops.aten.convolution_backward(
                _channels_first(grads[client]), _channels_first(mine), matrix, *options, wanted
            )
            out[client] = own
            if needs_input_grad:
                _channels_first(rows[client]).copy_(below)
        return rows


class Im2colConvolution:
    """A batched matrix product for all clients, over columns with the neighborhood of every pixel.

    Grouped convolutions are slow on a GPU, their backward most of all; batched products are not.
    """

    rows_at_once = 0
    max_columns = 2**27
    split_above = 1024  # pixels of a client from which its sum is split, so that the whole GPU works on it

    def forward(
        self, weight: Tensor, scale: Tensor | None, rows: Tensor, window: Window
    ) -> tuple[Tensor, Tensor]:
        """See `Convolution`; saves the columns (clients, rows, height, width, *kernel, inputs)."""
        (tall, wide), (down, right), (above, left) = window
        padded = pad(rows, (0, 0, left, left, above, above))
        around = padded.unfold(2, tall, down).unfold(3, wide, right)
        columns = around.permute(0, 1, 2, 3, 5, 6, 4).contiguous()
        matrix = _scaled(weight, scale).flatten(2)
        outputs = torch.bmm(columns.view(matrix.shape[0], -1, matrix.shape[2]), matrix.mT)
        return outputs.view(*columns.shape[:4], -1), columns

    def backward(
        self, weight: Tensor, saved: Tensor, grads: Tensor, out: Tensor, image: Size | None, window: Window
    ) -> Tensor:
        """See `Convolution`."""
        matrix, clients = _scaled(weight, None).flatten(2), grads.shape[0]
        (_, outputs, width), pixels = matrix.shape, grads[0, ..., 0].numel()
        splits = self.splits(pixels)
        partial = torch.bmm(
            grads.view(clients * splits, -1, outputs).mT, saved.view(clients * splits, -1, width)
        )
        partial = partial.view(clients, splits, outputs, *window.kernel, -1).permute(0, 1, 2, 5, 3, 4)
        torch.sum(partial, 1, out=out)
        return grads.new_empty(0) if image is None else self._input_grad(matrix, grads, image, window)

    def splits(self, pixels: int) -> int:
        """Into how many partial sums to split a client's sum Σ δᵀ X over this many pixels."""
        splits = 1
        while pixels // splits >= self.split_above and pixels % (2 * splits) == 0:
            splits *= 2
        return splits

    def _input_grad(self, matrix: Tensor, grads: Tensor, image: Size, window: Window) -> Tensor:
        """Gradients of the rows: for every pixel the sum over the neighborhoods it is part of."""
        clients, rows, height, width, outputs = grads.shape
        (tall, wide), (down, right), (above, left) = window
        channels = matrix.shape[2] // (tall * wide)
        around = torch.bmm(grads.view(matrix.shape[0], -1, outputs), matrix)
        around = around.view(clients, rows, height, width, tall, wide, channels)
        total = around.new_zeros(clients, rows, image[0] + 2 * above, image[1] + 2 * left, channels)
        for row in range(tall):
            for column in range(wide):
                lines = slice(row, row + down * height, down)
                there = total[:, :, lines, column : column + right * width : right]
                there.add_(around[:, :, :, :, row, column])
        return total[:, :, above : above + image[0], left : left + image[1]]


def _scaled(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Weights times the outputs' factors, in the order of columns: (groups, outputs, *kernel, inputs)."""
    ordered = weight.permute(0, 1, 3, 4, 2)
    if scale is None:
        return ordered.contiguous()
    return torch.mul(ordered, scale[..., None, None, None], out=ordered.new_empty(ordered.shape))


def _channels_first(rows: Tensor) -> Tensor:
    """A view of (..., height, width, channels) as (..., channels, height, width), the axes torch expects."""
    return rows.movedim(-1, -3)


def _by_client(weight: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Every client's weight (outputs, inputs, *kernel) and rows (rows, height, width, inputs)."""
    members = rows.shape[0] // weight.shape[0]
    return ((weight[client // members], mine) for client, mine in enumerate(rows))


class Pooled(NamedTuple):
    """The result of max pooling; both are (clients, rows, height, width, channels)."""

    values: Tensor
    indices: Tensor  # where each value was in its image of height · width pixels


def max_pool(rows: Tensor, window: Window = HALVES) -> Pooled:
    """Max pooling of (clients, rows, height, width, channels); lines and columns left over are cut."""
    found = max_pool2d(_channels_first(rows.flatten(0, 1)), *window, return_indices=True)
    return Pooled(*(part.movedim(-3, -1).view(*rows.shape[:2], *part.shape[2:], -1) for part in found))


def unpooled(rows: Tensor, pooled: Pooled, values: Tensor, window: Window = HALVES) -> Tensor:
    """Values at the pixels that `max_pool` chose of these rows, and zeros elsewhere, shaped as the rows."""
    values, images, indices = (_channels_first(part.flatten(0, 1)) for part in (values, rows, pooled.indices))
    spread: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        values, images, *window, (1, 1), False, indices
    )
    return spread.movedim(-3, -1).view(rows.shape)


def add_unpooled(rows: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """Add values to the pixels that `max_pool` chose, in place, and return `rows`."""
    rows.flatten(2, 3).scatter_add_(2, indices.flatten(2, 3), values.flatten(2, 3))
    return rows

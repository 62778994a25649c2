"""Convolutions of 3 × 3 over a stack of clients: forward and backward, whichever way the device does best.

Rows are `(clients, rows, height, width, channels)`, channels last; weights `(groups, outputs, inputs, 3, 3)`
as they lie in the flat vectors, a group being as many consecutive clients as share a model. Images are padded
with zeros, so they keep their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad


class Filters(Protocol):
    """A way to convolve."""

    rows: int  # of all clients that are worked on together, or of one client that has more; 0: all
    room: int  # numbers of columns that may be held at once where no backward follows

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs, without a bias, and what `backward` wants to read.

        Args:
            weight: (groups, outputs, inputs, 3, 3).
            scale: (groups, outputs) to multiply the outputs; None: nothing does.
            rows: (clients, rows, height, width, inputs).
        """

    def backward(self, weight: Tensor, read: Tensor, slopes: Tensor, own: Tensor, deeper: bool) -> Tensor:
        """The slopes of the rows, given those of the outputs before they were scaled.

        Args:
            weight: as in `forward`.
            read: what `forward` gave beside the outputs.
            slopes: (clients, rows, height, width, outputs).
            own: (clients, outputs, inputs, 3, 3), where the slopes of every client's weights are written.
            deeper: whether there is anything below; if not, an empty tensor will do.
        """


class Direct:
    """The library's own convolution, client by client: what a CPU does best, its caches being small."""

    rows = 200
    room = 2**22

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and the rows."""
        matrices = _scaled(weight, scale).permute(0, 1, 4, 2, 3)
        outputs = rows.new_empty(*rows.shape[:-1], weight.shape[1])
        for own, (matrix, mine) in zip(outputs, _paired(matrices, rows), strict=True):
            _planes(own).copy_(conv2d(_planes(mine), matrix, padding=1))
        return outputs, rows

    def backward(self, weight: Tensor, read: Tensor, slopes: Tensor, own: Tensor, deeper: bool) -> Tensor:
        """The slopes of the rows; those of the weights go to `own`."""
        options = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [deeper, True, False])
        rows = torch.empty_like(read) if deeper else read.new_empty(0)
        for client, (matrix, mine) in enumerate(_paired(weight, read)):
            below, found, _ = torch.ops.aten.convolution_backward(
                _planes(slopes[client]), _planes(mine), matrix, *options
            )
            own[client] = found
            if deeper:
                _planes(rows[client]).copy_(below)
        return rows


class Columns:
    """Matrix products of all clients at once, over columns that hold the nine neighbors of every pixel.

    A GPU's grouped convolutions are slow, above all their backward; its batched products are not.
    """

    rows = 0
    room = 2**27
    long = 1024  # pixels of a client over which a sum is split, so that all of a GPU works on it

    def forward(self, weight: Tensor, scale: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and the columns (clients, rows, height, width, 3, 3, inputs)."""
        around = pad(rows, (0, 0, 1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
        columns = around.permute(0, 1, 2, 3, 5, 6, 4).contiguous()
        matrix = _scaled(weight, scale).flatten(2)
        outputs = torch.bmm(columns.view(matrix.shape[0], -1, matrix.shape[2]), matrix.mT)
        return outputs.view(*rows.shape[:-1], -1), columns

    def backward(self, weight: Tensor, read: Tensor, slopes: Tensor, own: Tensor, deeper: bool) -> Tensor:
        """The slopes of the rows; those of the weights go to `own`."""
        matrix, clients = _scaled(weight, None).flatten(2), slopes.shape[0]
        (_, outputs, width), places = matrix.shape, slopes[0, ..., 0].numel()
        parts = self.pieces(places)
        found = torch.bmm(slopes.view(clients * parts, -1, outputs).mT, read.view(clients * parts, -1, width))
        found = found.view(clients, parts, outputs, 3, 3, -1).permute(0, 1, 2, 5, 3, 4)
        torch.sum(found, 1, out=own)
        return self.below(matrix, slopes) if deeper else slopes.new_empty(0)

    def pieces(self, pixels: int) -> int:
        """Into how many to split a client's sum Σ δᵀ X over these pixels."""
        parts = 1
        while pixels // parts >= self.long and pixels % (2 * parts) == 0:
            parts *= 2
        return parts

    def below(self, matrix: Tensor, slopes: Tensor) -> Tensor:
        """The slopes of the rows: every pixel's share of the nine neighborhoods it stands in."""
        clients, rows, height, width, outputs = slopes.shape
        channels = matrix.shape[2] // 9
        around = torch.bmm(slopes.view(matrix.shape[0], -1, outputs), matrix)
        around = around.view(clients, rows, height, width, 3, 3, channels)
        total = around.new_zeros(clients, rows, height + 2, width + 2, channels)
        for down in range(3):
            for right in range(3):
                there = total[:, :, down : down + height, right : right + width]
                there.add_(around[:, :, :, :, down, right])
        return total[:, :, 1:-1, 1:-1]


def _scaled(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Weights as (groups, outputs, 3, 3, inputs), in the order of columns, times what scales the outputs."""
    last = weight.permute(0, 1, 3, 4, 2)
    if scale is None:
        return last.contiguous()
    return torch.mul(last, scale[..., None, None, None], out=last.new_empty(last.shape))


def _planes(rows: Tensor) -> Tensor:
    """Rows (..., height, width, channels) with channels before, as torch wants them, and last in memory."""
    return rows.movedim(-1, -3)


def _paired(weight: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Every client's weights and rows."""
    members = rows.shape[0] // weight.shape[0]
    return ((weight[client // members], mine) for client, mine in enumerate(rows))


class Pooled(NamedTuple):
    """The largest of every 2 × 2 pixels."""

    largest: Tensor  # (clients, rows, height / 2, width / 2, channels)
    picks: Tensor  # where each stood in its image of height · width pixels


def pool(rows: Tensor) -> Pooled:
    """Of every channel by itself; an odd last row or column of pixels is left out."""
    found = max_pool2d(_planes(rows.flatten(0, 1)), 2, return_indices=True)
    return Pooled(*(part.movedim(-3, -1).view(*rows.shape[:2], *part.shape[2:], -1) for part in found))


def add_picked(rows: Tensor, picks: Tensor, values: Tensor) -> Tensor:
    """Add values where the largest stood, in place."""
    rows.flatten(2, 3).scatter_add_(2, picks.flatten(2, 3), values.flatten(2, 3))
    return rows

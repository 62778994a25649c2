"""Keyed dropout in the hand-written passes, with the masks of `nn.dropout`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sfedhp.core.keys import key, words
from sfedhp.nn.dropout import is_kept


class Masks:
    """The dropout masks of a training forward of some clients, in the order of its calls.

    After a ReLU, a dropped value is 0 like a value that the ReLU has cut. So the backward of both reads only
    the outputs, and no mask is stored.
    """

    def __init__(self, keys: Tensor | None):
        """Begin a forward.

        Args:
            keys: (clients,), of the mini-batches; None: nothing is dropped.
        """
        self._keys = keys
        self._calls = 0

    def drop(self, rows: Tensor, p: float) -> Tensor:
        """Rows (clients, rows, ...) without what is dropped with probability p, the rest scaled up."""
        if not p or self._keys is None:
            return rows
        drawn = words(key(self._keys, self._calls), rows[0].numel()).view(rows.shape)
        self._calls += 1
        return torch.where(is_kept(drawn, p), rows / (1 - p), 0.0)

    def drop_pixels(self, pixels: Tensor, p: float) -> Tensor:
        """The same for (clients, rows, height, width, channels), counted as a module does: channels first."""
        if not p or self._keys is None:
            return pixels
        return self.drop(pixels.movedim(-1, 2), p).movedim(2, -1).contiguous()

    def undrop(self, grads: Tensor, p: float) -> Tensor:
        """Gradients below a dropout, where its output is not 0."""
        return grads / (1 - p) if p and self._keys is not None else grads


NOTHING_DROPPED: Final = Masks(None)

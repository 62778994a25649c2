"""Some clients of a stack: consecutive ones, or those who were drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Some consecutive clients of a stack."""

    axis: int
    first: int
    width: int

    def cut(self, tensor: Tensor) -> Tensor:
        """Their part of a tensor of all."""
        if tensor.shape[self.axis] == 1:
            return tensor  # an anchor that all clients share
        return tensor.narrow(self.axis, self.first, self.width)


@dataclass(frozen=True)
class Chosen:
    """The clients drawn of a two-tier stack, the same number in every run."""

    drawn: Tensor  # (runs?, clients) bool
    axis: int
    count: int  # how many; to ask the mask would be to wait for the device

    def pick(self, whole: Tensor) -> Tensor:
        """Their part of a tensor of all."""
        return whole.gather(self.axis, self._index(whole))

    def put(self, whole: Tensor, part: Tensor) -> Tensor:
        """The tensor of all with their part renewed."""
        return whole.scatter(self.axis, self._index(whole), part)

    def _index(self, like: Tensor) -> Tensor:
        ranked = self.drawn.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
        first = ranked[..., : self.count]
        wide = first.reshape(*first.shape, *(1,) * (like.ndim - first.ndim))
        return wide.expand(*first.shape, *like.shape[first.ndim :])

"""Some clients or edges of a stack: consecutive or sampled ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """Some consecutive clients or edges of a stack."""

    axis: int
    first: int
    width: int

    def cut(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that belongs to the slice; a row that all share stays as it is."""
        if tensor.shape[self.axis] == 1:
            return tensor  # an anchor that all clients share
        return tensor.narrow(self.axis, self.first, self.width)


def slices(axis: int, total: int, width: int) -> list[Slice]:
    """Slices that cover all of `total` clients or edges, each of at most `width`."""
    return [Slice(axis, first, min(width, total - first)) for first in range(0, total, width)]


@dataclass(frozen=True)
class Drawn:
    """The sampled clients of a two-tier stack, the same number in every run."""

    mask: Tensor  # (runs?, clients) bool
    axis: int
    count: int  # how many; to count the mask would wait for the device

    def pick(self, whole: Tensor) -> Tensor:
        """The sampled clients' part of a tensor of all clients."""
        return whole.gather(self.axis, self._index(whole))

    def put(self, whole: Tensor, part: Tensor) -> Tensor:
        """A copy of a tensor of all clients in which the sampled clients' part is replaced."""
        return whole.scatter(self.axis, self._index(whole), part)

    def put_back(self, part: Tensor) -> Tensor:
        """A tensor of all clients with the sampled clients' part, and zero for the others."""
        return self.put(part.new_zeros(*self.mask.shape, *part.shape[self.mask.ndim :]), part)

    def _index(self, like: Tensor) -> Tensor:
        """The numbers of those drawn, in order, in the form in which `gather` takes them."""
        ranked = self.mask.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
        first = ranked[..., : self.count]
        wide = first.reshape(*first.shape, *(1,) * (like.ndim - first.ndim))
        return wide.expand(*first.shape, *like.shape[first.ndim :])

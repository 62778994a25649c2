"""Some clients of a stack: consecutive ones, or those who were drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfedhp.core.factored import placed
from sfedhp.core.trees import tree_map
from sfedhp.nn.task import Task


@dataclass(frozen=True)
class Piece:
    """Some consecutive clients or edges of a stack."""

    axis: int
    first: int
    width: int

    def cut(self, tensor: Tensor) -> Tensor:
        """Their part of a tensor of all."""
        if tensor.shape[self.axis] == 1:
            return tensor  # an anchor that all clients share
        return tensor.narrow(self.axis, self.first, self.width)


def pieces(axis: int, total: int, width: int) -> list[Piece]:
    """All of `total`, so many at a time."""
    return [Piece(axis, first, min(width, total - first)) for first in range(0, total, width)]


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


def in_pieces(
    work: Callable[[Tensor, Any, Task], tuple[Any, Any]],
    axis: int,
    width: int,
    received: Tensor,
    held: Any,
    task: Task,
) -> tuple[Any, Any]:
    """What clients send and what they keep, computed some at a time.

    Args:
        work: a step of some of them: what they received, what they hold, their task; it gives what they send
            and what they hold then, `personal` and `statistics`.
        axis: the clients'.
        width: how many at a time; 0: all.
        received: of all clients.
        held: likewise.
        task: likewise.
    """
    total = task.lead[axis]
    if not 0 < width < total:
        return work(received, held, task)
    whole: Any = None
    for piece in pieces(axis, total, width):
        sent, after = work(piece.cut(received), tree_map(piece.cut, held), task.map(piece.cut))
        # What a client sends and keeps may be one thing, and is then written once.
        same = sent is after.personal
        whole = placed(whole, (() if same else sent, after), axis, piece.first, total)
    sent, after = whole
    return after.personal if same else sent, after

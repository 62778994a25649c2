"""Some clients of a stack: consecutive ones, or those who were drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfedhp.tasks import Task
from sfedhp.vectors import placed, tree_map


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


def in_pieces(
    work: Callable[[Tensor, Any, Task], tuple[Any, Any]],
    widths: Mapping[int, int],
    received: Tensor,
    held: Any,
    task: Task,
) -> tuple[Any, Any]:
    """What clients send and what they keep, computed some at a time.

    Args:
        work: a step of some of them: what they received, what they hold, their task; it gives what they send
            and what they hold then, `personal` and `statistics`.
        widths: how many members at a time along these axes, the clients' last; 0: all.
        received: of all clients.
        held: likewise.
        task: likewise.
    """
    if not widths:
        return work(received, held, task)
    (axis, width), *others = widths.items()
    inner, total, whole = dict(others), task.lead[axis], None
    if not 0 < width < total:
        return in_pieces(work, inner, received, held, task)
    for first in range(0, total, width):
        piece = Piece(axis, first, min(width, total - first))
        some = tree_map(piece.cut, held)
        sent, after = in_pieces(work, inner, piece.cut(received), some, task.map(piece.cut))
        # What a client sends and keeps may be one thing, and is then written once.
        same = sent is after.personal
        whole = placed(whole, (() if same else sent, after), axis, first, total, shared=not others)
    assert whole is not None, "there is at least one client"
    sent, after = whole
    return after.personal if same else sent, after

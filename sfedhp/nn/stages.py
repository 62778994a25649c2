"""Which clients of a stack still take steps: those that are done leave it, and cost nothing more."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Stage(NamedTuple):
    """Some steps, and the clients that take all of them; the others are done."""

    steps: range
    clients: Tensor  # (n,) or (runs, n): numbers in the stack, those with the most steps first


def stages_of(steps: Tensor, runs: int = 0) -> list[Stage]:
    """The stages of a stack, each with the first of the clients before; none: all take equally many steps.

    A GPU is not asked how many rows clients have: it computes all of them together, as if in one stage.

    Args:
        steps: (*lead), of every client.
        runs: leading axes that are not divided, 0 or 1. A client is done where it is done in all runs.
    """
    if steps.ndim <= runs or steps.is_cuda:
        return []
    numbers = torch.arange(steps.numel()).view(*steps.shape[:runs], -1)
    longest = steps.flatten(runs).amax(0) if runs else steps.flatten()
    order = longest.argsort(descending=True, stable=True)
    ends = sorted(set(longest.tolist()))
    if len(ends) == 1:
        return []
    firsts = [0, *ends[:-1]]
    return [
        Stage(range(first, end), numbers[..., order[: int((longest >= end).sum())]])
        for first, end in zip(firsts, ends, strict=True)
        if end
    ]


def of_clients(tensor: Tensor, clients: Tensor, lead: torch.Size) -> Tensor:
    """The part (*clients, …) of a tensor of the stack that is of some clients.

    Args:
        tensor: (..., …) of as many leading axes as `lead`, or what expands to it; what all share stays so.
        clients: their numbers in the stack.
        lead: the shape of the stack.
    """
    axes = len(lead)
    whole = tensor.expand(*lead, *tensor.shape[axes:])
    if not any(whole.stride()[:axes]):
        return whole[(0,) * axes].expand(*clients.shape, *whole.shape[axes:])
    return whole[torch.unravel_index(clients, lead)]

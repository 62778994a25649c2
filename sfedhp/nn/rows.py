"""Selecting rows of a table for every client of a stack at once."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from sfedhp.nn.stages import of_clients


def take_rows(table: Tensor, rows: Tensor, lead: torch.Size, clients: Tensor | None = None) -> Tensor:
    """Rows with the given numbers (*lead, m) of a table (*lead, width, *shape): (*lead, m, *shape).

    The table is read as one long list of rows with a single `index_select`, many times faster than `gather`.
    It is not copied, even if the stack is a slice of a larger one or repeats the same rows.

    Args:
        table: of all clients of a stack.
        rows: of each of them, or (*clients, m) of some.
        lead: the shape of the stack.
        clients: whose rows they are, as numbers in the stack; None: of all.
    """
    axes = len(lead)
    strides, row_stride, shape = table.stride()[:axes], table.stride(axes), table.shape[axes + 1 :]
    if not table.numel() or not row_stride or any(stride % row_stride for stride in strides):
        table = table if clients is None else of_clients(table, clients, lead)
        axes = rows.ndim - 1
        return table.gather(axes, rows.view(*rows.shape, *(1,) * len(shape)).expand(*rows.shape, *shape))
    steps = tuple(stride // row_stride for stride in strides)
    length = table.shape[axes] + sum(
        (size - 1) * step for size, step in zip(table.shape, steps, strict=False)
    )
    flat = table.as_strided((length, *shape), (row_stride, *table.stride()[axes + 1 :]))
    first = _first_rows(lead, steps, rows.device)
    first = first if clients is None else of_clients(first, clients, lead)
    return flat.index_select(0, (first + rows).flatten()).view(*rows.shape, *shape)


@lru_cache(maxsize=64)
def _first_rows(sizes: torch.Size, steps: tuple[int, ...], device: torch.device) -> Tensor:
    """The number of each client's first row in the list of all, (*sizes, 1)."""
    first = torch.zeros((), dtype=torch.int64, device=device)
    for size, step in zip(sizes, steps, strict=True):
        first = first.unsqueeze(-1) + torch.arange(size, device=device) * step
    return first.unsqueeze(-1)

"""Matrix products over a stack of clients and what follows them, whichever way the device does best."""

from __future__ import annotations

import torch
from torch import Tensor

from sfedhp.nn.kernels import available

_NARROW = 16  # numbers that a CPU's widest registers hold
_FEW = 32  # terms of a product that a GPU kernel takes at once


def columns_first(columns: int, device: torch.device) -> bool:
    """Whether matrices with so many columns are faster where a column, not a row, lies in one piece.

    Fewer columns than a register holds leave a CPU half idle: both their product and their softmax take twice
    as long by rows.
    """
    return columns < _NARROW and device.type == "cpu"


def plus_product(base: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """base + left · right, for every client or group."""
    if columns_first(right.shape[-1], right.device):
        return torch.baddbmm(base.mT, right.mT, left.mT).mT
    return torch.baddbmm(base, left, right)


def add_product(outputs: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add left · right to what a layer's `forward` gave, in place."""
    if columns_first(right.shape[-1], right.device):
        return outputs.mT.baddbmm_(right.mT, left.mT).mT
    return outputs.baddbmm_(left, right)


def few(left: Tensor) -> bool:
    """Whether products of (clients, rows, terms) have so few that one kernel does them and what follows."""
    known = left.dtype in (torch.float32, torch.float64)
    return left.shape[-1] <= _FEW and known and available.kernels_run_on(left.device)


def raised(
    base: Tensor,
    left: Tensor,
    right: Tensor,
    bent: bool = False,
    into: Tensor | None = None,
    spent: bool = False,
) -> Tensor:
    """base + left · right, for every client.

    Args:
        base: (clients, rows, columns), or (clients, 1, columns).
        left: (clients, rows, terms).
        right: (clients, terms, columns).
        bent: whether ReLU follows.
        into: where to write what is bent; None: anywhere.
        spent: whether `base` is what a layer's `forward` gave, and nobody needs it any more.
    """
    if few(left):
        from sfedhp.nn.kernels import matmul as kernels

        return kernels.product(left, right, base, bent=bent, out=into)
    outputs = add_product(base, left, right) if spent else plus_product(base, left, right)
    return rise(outputs, into) if bent else outputs


def lowered(
    left: Tensor,
    right: Tensor,
    base: Tensor | None = None,
    height: Tensor | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """left · right, for every client.

    Args:
        left: (clients, rows, terms).
        right: (clients, terms, columns).
        base: what is added, (clients, rows, columns), and nobody needs any more; None: nothing.
        height: outputs of the ReLU that these slopes pass, see `bend`; None: they pass none.
        into: where to write slopes that have passed it; None: anywhere.
    """
    if few(left):
        from sfedhp.nn.kernels import matmul as kernels

        return kernels.product(left, right, base, gate=height, out=into)
    slopes = torch.bmm(left, right) if base is None else base.baddbmm_(left, right)
    return slopes if height is None else bend(slopes, height, into)


def rise(outputs: Tensor, into: Tensor | None = None) -> Tensor:
    """ReLU."""
    return torch.relu(outputs) if into is None else torch.clamp_min(outputs, 0.0, out=into)


def bend(slopes: Tensor, height: Tensor, into: Tensor | None = None) -> Tensor:
    """Slopes below a ReLU whose outputs were `height`: none where it was off."""
    backward, bent = torch.ops.aten.threshold_backward, into
    if bent is None:
        bent = backward(slopes, height, 0)
    else:
        backward.grad_input(slopes, height, 0, grad_input=bent)
    return bent

"""Batched matrix products over a stack of clients, with ReLU and its backward, as each device does them best.

On a GPU, products of at most 32 terms run in one Triton kernel together with the addition and the ReLU that
follow; longer products, and every product on a CPU, go through torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfedhp.nn.kernels import available

_REGISTER_WIDTH = 16  # float32 numbers in the widest CPU register
_KERNEL_TERMS = 32  # largest inner dimension that the fused GPU kernel supports


def prefers_column_major(columns: int, device: torch.device) -> bool:
    """Whether a matrix with this many columns is faster stored column by column.

    With fewer columns than a CPU register holds, a row leaves the register half empty: the product and the
    softmax of such a matrix take about twice as long in row-major order.
    """
    return columns < _REGISTER_WIDTH and device.type == "cpu"


def baddbmm(base: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`torch.baddbmm`: base + left · right, new memory, column-major where that is faster.

    Args:
        base: (batch, rows or 1, columns).
        left: (batch, rows, terms).
        right: (batch, terms, columns).

    Returns:
        (batch, rows, columns).
    """
    if prefers_column_major(right.shape[-1], right.device):
        return torch.baddbmm(base.mT, right.mT, left.mT).mT
    return torch.baddbmm(base, left, right)


def baddbmm_(outputs: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add left · right in place to `outputs`, which must be stored as `baddbmm` stores its result."""
    if prefers_column_major(right.shape[-1], right.device):
        return outputs.mT.baddbmm_(right.mT, left.mT).mT
    return outputs.baddbmm_(left, right)


def fits_kernel(left: Tensor) -> bool:
    """Whether the fused GPU kernel can multiply `left` (clients, rows, terms) with another matrix."""
    known = left.dtype in (torch.float32, torch.float64)
    return left.shape[-1] <= _KERNEL_TERMS and known and available.kernels_run_on(left.device)


def matmul_add(
    base: Tensor,
    left: Tensor,
    right: Tensor,
    relu: bool = False,
    out: Tensor | None = None,
    inplace: bool = False,
) -> Tensor:
    """base + left · right for every client, followed by ReLU if `relu`: (clients, rows, columns).

    Args:
        base: (clients, rows, columns) or (clients, 1, columns).
        left: (clients, rows, terms).
        right: (clients, terms, columns).
        relu: whether ReLU follows.
        out: memory for the result after ReLU; None: new memory.
        inplace: whether `base` may be overwritten. It must then be the result of a layer's `forward`.
    """
    if fits_kernel(left):
        from sfedhp.nn.kernels import matmul as kernels

        return kernels.matmul(left, right, base, relu=relu, out=out)
    outputs = baddbmm_(base, left, right) if inplace else baddbmm(base, left, right)
    return relu_forward(outputs, out) if relu else outputs


def matmul_backward(
    left: Tensor,
    right: Tensor,
    base: Tensor | None = None,
    activation: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """base + left · right for every client, then back through a ReLU: (clients, rows, columns).

    Args:
        left: (clients, rows, terms), gradients of a layer's outputs.
        right: (clients, terms, columns).
        base: (clients, rows, columns), overwritten with the result; None: zero.
        activation: outputs of the ReLU to go back through, see `relu_backward`; None: there is no ReLU.
        out: memory for the gradients below the ReLU; None: new memory.
    """
    if fits_kernel(left):
        from sfedhp.nn.kernels import matmul as kernels

        return kernels.matmul(left, right, base, activation=activation, out=out)
    grads = torch.bmm(left, right) if base is None else base.baddbmm_(left, right)
    return grads if activation is None else relu_backward(grads, activation, out)


def relu_forward(outputs: Tensor, out: Tensor | None = None) -> Tensor:
    """max(outputs, 0), written to `out` if given."""
    return torch.relu(outputs) if out is None else torch.clamp_min(outputs, 0.0, out=out)


def relu_backward(grads: Tensor, activation: Tensor, out: Tensor | None = None) -> Tensor:
    """Gradients of a ReLU's inputs: `grads` where its output `activation` is above 0, and 0 elsewhere."""
    backward = torch.ops.aten.threshold_backward
    if out is None:
        below: Tensor = backward(grads, activation, 0)
        return below
    backward.grad_input(grads, activation, 0, grad_input=out)
    return out

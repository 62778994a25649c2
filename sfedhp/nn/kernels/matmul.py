"""Matrix products of few terms for every client, fused with the operations before and after them.

A program computes one tile of one client's result, with all terms of the sum at once. Factors are rounded as
`nn.precision` says; by default they are not.

Matrices are passed as a pointer and their three strides, so any layout will do; row `row` and column `column`
of matrix `index` is at `pointer + index * strides[0] + row * strides[1] + column * strides[2]`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

from sfedhp.nn.precision import current

MAX_BLOCK_ROWS, BLOCK_COLUMNS = 32, 32  # the largest tile of a program
MIN_BLOCK = 16  # the smallest number of rows and of terms that the tensor cores multiply


def matmul(
    left: Tensor,
    right: Tensor,
    base: Tensor | None = None,
    activation: Tensor | None = None,
    relu: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """base + left · right, then ReLU, or back through a ReLU: (clients, rows, columns).

    Args:
        left: (clients, rows, terms).
        right: (groups, terms, columns), each matrix shared by clients / groups consecutive clients.
        base: (clients, rows, columns), or a tensor that expands to that; None: zero.
        activation: (clients, rows, columns), the outputs of a ReLU to go back through: the result is 0 if
            they are not above 0. None: there is none.
        relu: whether ReLU follows.
        out: memory for the result; it may be `base`. None: new memory.
    """
    clients, rows, terms = left.shape
    columns = right.shape[-1]
    if out is None:
        out = left.new_empty(clients, rows, columns)
    if base is not None:
        base = base.expand(out.shape)
    block_rows, block_terms = _block_sizes(rows, terms)
    _matmul[(clients, triton.cdiv(rows, block_rows), triton.cdiv(columns, BLOCK_COLUMNS))](
        left,
        right,
        base,
        activation,
        out,
        left.stride(),
        right.stride(),
        None if base is None else base.stride(),
        None if activation is None else activation.stride(),
        out.stride(),
        clients // right.shape[0],
        rows,
        columns,
        terms,
        relu,
        current(),
        block_rows,
        BLOCK_COLUMNS,
        block_terms,
    )
    return out


def update_layer(
    weight: Tensor,
    bias: Tensor,
    grads: Tensor,
    rows: Tensor,
    keep: float | Tensor,
    anchors: tuple[Tensor, Tensor] | None = None,
    pull: float | Tensor = 0.0,
) -> None:
    """weight ← keep · weight + pull · anchor + gradsᵀ · rows; the bias likewise, with rows of a single 1.

    Args:
        weight: (clients, outputs, inputs), updated in place.
        bias: (clients, 1, outputs), updated in place.
        grads: (clients, rows, outputs).
        rows: (clients, rows, inputs).
        keep: one number for all clients, or (clients, 1, 1). If it is the number 0, the old weight and bias
            are not read.
        anchors: of weight and bias, (groups, ...), each shared by clients / groups consecutive clients; None:
            there is no pull.
        pull: one number for all clients, or (clients, 1, 1).
    """
    clients, outputs, inputs = weight.shape
    terms, left = rows.shape[1], grads.mT
    anchor, anchor_bias = (None, None) if anchors is None else anchors
    block_rows, block_terms = _block_sizes(outputs, terms)
    _update_layer[(clients, triton.cdiv(outputs, block_rows), triton.cdiv(inputs, BLOCK_COLUMNS))](
        weight,
        bias,
        left,
        rows,
        anchor,
        anchor_bias,
        weight.stride(),
        bias.stride(),
        left.stride(),
        rows.stride(),
        None if anchor is None else anchor.stride(),
        None if anchor_bias is None else anchor_bias.stride(),
        *_factor_arguments(keep),
        *_factor_arguments(pull),
        1 if anchor is None else clients // anchor.shape[0],
        outputs,
        inputs,
        terms,
        isinstance(keep, Tensor) or keep != 0,
        current(),
        block_rows,
        BLOCK_COLUMNS,
        block_terms,
    )


def _block_sizes(rows: int, terms: int) -> tuple[int, int]:
    """How many rows and how many terms the tile of a program has; both are powers of two."""
    return min(max(next_power_of_2(rows), MIN_BLOCK), MAX_BLOCK_ROWS), max(next_power_of_2(terms), MIN_BLOCK)


def _factor_arguments(factor: float | Tensor) -> tuple[float, Tensor | None, int]:
    """A factor as three kernel arguments: its number, or a pointer to each client's and their stride."""
    if isinstance(factor, Tensor):
        return 0.0, factor, factor.stride(0)
    return float(factor), None, 0


# Grid: (clients, tiles of rows, tiles of columns).
#   left        (clients, rows, terms)
#   right       (groups, terms, columns)
#   base        (clients, rows, columns) or None
#   activation  (clients, rows, columns) or None
#   out         (clients, rows, columns)
#   *_strides   the three strides of each
#   members     clients of a group
#   precision   as `nn.precision` names it
@triton.jit
def _matmul(
    left,
    right,
    base,
    activation,
    out,
    left_strides,
    right_strides,
    base_strides,
    activation_strides,
    out_strides,
    members,
    rows,
    columns,
    terms: tl.constexpr,
    relu: tl.constexpr,
    precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_terms: tl.constexpr,
):
    """Compute one tile of one client's result."""
    client, row, column, term = _tile_indices(block_rows, block_columns, block_terms)
    left_tile = _load(left, left_strides, client, row, term[None, :], rows, terms)
    right_tile = _load(right, right_strides, client // members, term[:, None], column, terms, columns)
    total = _dot(left_tile, right_tile, precision)
    if base is not None:
        total += _load(base, base_strides, client, row, column, rows, columns)
    # Written as `<= 0` so that NaN stays NaN, as in torch's ReLU.
    if relu:
        total = tl.where(total <= 0, 0, total)
    if activation is not None:
        reached = _load(activation, activation_strides, client, row, column, rows, columns)
        total = tl.where(reached <= 0, 0, total)
    tl.store(_at(out, out_strides, client, row, column), total, mask=(row < rows) & (column < columns))


# Grid: (clients, tiles of outputs, tiles of inputs).
#   weight       (clients, outputs, inputs), read and written
#   bias         (clients, 1, outputs), read and written by the programs of the first tile of inputs
#   left         (clients, outputs, terms), the transposed gradients
#   right        (clients, terms, inputs)
#   anchor       (groups, outputs, inputs) or None
#   anchor_bias  (groups, 1, outputs) or None
#   *_strides    the three strides of each
#   keep, keep_each, keep_stride   the number for all clients; or keep_each[client * keep_stride]
#   pull, pull_each, pull_stride   the same for the pull
#   members      clients of a group
#   kept         whether keep is not 0
#   precision    as `nn.precision` names it
@triton.jit
def _update_layer(
    weight,
    bias,
    left,
    right,
    anchor,
    anchor_bias,
    weight_strides,
    bias_strides,
    left_strides,
    right_strides,
    anchor_strides,
    anchor_bias_strides,
    keep: tl.float64,
    keep_each,
    keep_stride,
    pull: tl.float64,
    pull_each,
    pull_stride,
    members,
    outputs,
    inputs,
    terms: tl.constexpr,
    kept: tl.constexpr,
    precision: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    block_terms: tl.constexpr,
):
    """Update one tile of one client's weight; the first tile of inputs also the bias."""
    client, row, column, term = _tile_indices(block_rows, block_columns, block_terms)
    group = client // members
    left_tile = _load(left, left_strides, client, row, term[None, :], outputs, terms)
    right_tile = _load(right, right_strides, client, term[:, None], column, terms, inputs)
    keep = _factor(keep, keep_each, keep_stride, client, weight.dtype.element_ty)
    pull = _factor(pull, pull_each, pull_stride, client, weight.dtype.element_ty)
    total = _dot(left_tile, right_tile, precision)
    if kept:
        total += keep * _load(weight, weight_strides, client, row, column, outputs, inputs)
    if anchor is not None:
        total += pull * _load(anchor, anchor_strides, group, row, column, outputs, inputs)
    inside = (row < outputs) & (column < inputs)
    tl.store(_at(weight, weight_strides, client, row, column), total, mask=inside)
    # The programs of the first tile of inputs also update the bias.
    if tl.program_id(2) == 0:
        bias_total = tl.sum(left_tile, 1)[:, None]
        if kept:
            bias_total += keep * _load(bias, bias_strides, client, 0, row, 1, outputs)
        if anchor_bias is not None:
            bias_total += pull * _load(anchor_bias, anchor_bias_strides, group, 0, row, 1, outputs)
        tl.store(_at(bias, bias_strides, client, 0, row), bias_total, mask=row < outputs)


@triton.jit
def _tile_indices(block_rows: tl.constexpr, block_columns: tl.constexpr, block_terms: tl.constexpr):
    """Of a program: client, rows (block, 1) and columns (1, block) of the result, and terms (block,)."""
    client = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(1) * block_rows + tl.arange(0, block_rows))[:, None]
    column = (tl.program_id(2) * block_columns + tl.arange(0, block_columns))[None, :]
    return client, row, column, tl.arange(0, block_terms)


@triton.jit
def _dot(left, right, precision: tl.constexpr):
    """left · right in the precision of the run; the sum is in full."""
    if precision == "float32":
        total = tl.dot(left, right, input_precision="ieee")
    else:
        if precision == "bf16":  # whose numbers TF32 holds exactly
            left = left.to(tl.bfloat16).to(tl.float32)
            right = right.to(tl.bfloat16).to(tl.float32)
        total = tl.dot(left, right, input_precision="tf32")
    return total


@triton.jit
def _at(matrices, strides, index, row, column):
    """Pointers to these rows and columns of matrix `index` of a stack."""
    return matrices + index * strides[0] + row * strides[1] + column * strides[2]


@triton.jit
def _load(matrices, strides, index, row, column, rows, columns):
    """The numbers there, and zeros beyond the last row and the last column."""
    inside = (row < rows) & (column < columns)
    return tl.load(_at(matrices, strides, index, row, column), mask=inside, other=0)


@triton.jit
def _factor(number, each, stride, client, kind: tl.constexpr):
    """The number for all clients, or this client's own; of type `kind`."""
    return tl.full((1, 1), number, kind) if each is None else tl.load(each + client * stride)

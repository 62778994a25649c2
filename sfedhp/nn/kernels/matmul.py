"""Products of few terms for every client, with what comes before and after them.

All terms are taken at once, exactly: a product of long rows is better left to the libraries made for it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

TALL, WIDE = 32, 32  # rows and columns that a program takes at most
LEAST = 16  # rows, and terms, that a program has room for at least: a GPU multiplies no fewer at once


def product(
    left: Tensor,
    right: Tensor,
    base: Tensor | None = None,
    gate: Tensor | None = None,
    bent: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """base + left · right, then ReLU, or zero where a gate is not above zero: (clients, rows, columns).

    Args:
        left: (clients, rows, terms).
        right: (groups, terms, columns); as many consecutive clients as there are to a group share a matrix.
        base: (clients, rows, columns) or what expands to that; None: zero.
        gate: (clients, rows, columns), the outputs of the ReLU that the slopes go back through; None: none.
        bent: whether ReLU follows.
        out: where to write; it may be the base. None: new memory.
    """
    clients, rows, terms = left.shape
    columns = right.shape[-1]
    if out is None:
        out = left.new_empty(clients, rows, columns)
    if base is not None:
        base = base.expand(out.shape)
    tall, deep = _size(rows, terms)
    _product[(clients, triton.cdiv(rows, tall), triton.cdiv(columns, WIDE))](
        left,
        right,
        base,
        gate,
        out,
        left.stride(),
        right.stride(),
        None if base is None else base.stride(),
        None if gate is None else gate.stride(),
        out.stride(),
        clients // right.shape[0],
        rows,
        columns,
        terms,
        bent,
        tall,
        WIDE,
        deep,
    )
    return out


def move(
    weight: Tensor,
    bias: Tensor,
    slopes: Tensor,
    rows: Tensor,
    keep: float | Tensor,
    centers: tuple[Tensor, Tensor] | None = None,
    pull: float | Tensor = 0.0,
) -> None:
    """weight ← keep · weight + pull · center + slopesᵀ · rows; the bias likewise, with rows of a single one.

    Args:
        weight: (clients, outputs, inputs), moved in place.
        bias: (clients, 1, outputs), likewise.
        slopes: (clients, rows, outputs).
        rows: (clients, rows, inputs).
        keep: one for all clients, or (clients, 1, 1). Where it is the number 0, what was there is not read.
        centers: of weight and bias, (groups, ...), each for as many consecutive clients as there are to a
            group; None: nothing pulls.
        pull: as `keep`.
    """
    clients, outputs, inputs = weight.shape
    terms, left = rows.shape[1], slopes.mT
    center, center_bias = (None, None) if centers is None else centers
    tall, deep = _size(outputs, terms)
    _move[(clients, triton.cdiv(outputs, tall), triton.cdiv(inputs, WIDE))](
        weight,
        bias,
        left,
        rows,
        center,
        center_bias,
        weight.stride(),
        bias.stride(),
        left.stride(),
        rows.stride(),
        None if center is None else center.stride(),
        None if center_bias is None else center_bias.stride(),
        *_numbers(keep),
        *_numbers(pull),
        1 if center is None else clients // center.shape[0],
        outputs,
        inputs,
        terms,
        isinstance(keep, Tensor) or keep != 0,
        tall,
        WIDE,
        deep,
    )


def _size(rows: int, terms: int) -> tuple[int, int]:
    """How many rows a program takes, and how many terms its product has room for."""
    return min(max(next_power_of_2(rows), LEAST), TALL), max(next_power_of_2(terms), LEAST)


def _numbers(factor: float | Tensor) -> tuple[float, Tensor | None, int]:
    """A factor as a kernel takes it: the number, or where each client's lies and how far from the next."""
    if isinstance(factor, Tensor):
        return 0.0, factor, factor.stride(0)
    return float(factor), None, 0


@triton.jit
def _product(
    left,
    right,
    base,
    gate,
    out,
    left_steps,
    right_steps,
    base_steps,
    gate_steps,
    out_steps,
    members,
    rows,
    columns,
    terms: tl.constexpr,
    bent: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    deep: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(1) * tall + tl.arange(0, tall))[:, None]
    column = (tl.program_id(2) * wide + tl.arange(0, wide))[None, :]
    term = tl.arange(0, deep)
    one = _read(left, left_steps, client, row, term[None, :], rows, terms)
    other = _read(right, right_steps, client // members, term[:, None], column, terms, columns)
    total = tl.dot(one, other, input_precision="ieee")
    if base is not None:
        total += _read(base, base_steps, client, row, column, rows, columns)
    # What is not a number stays so, as with any other ReLU.
    if bent:
        total = tl.where(total <= 0, 0, total)
    if gate is not None:
        total = tl.where(_read(gate, gate_steps, client, row, column, rows, columns) <= 0, 0, total)
    tl.store(_at(out, out_steps, client, row, column), total, mask=(row < rows) & (column < columns))


@triton.jit
def _move(
    weight,
    bias,
    left,
    right,
    center,
    center_bias,
    weight_steps,
    bias_steps,
    left_steps,
    right_steps,
    center_steps,
    center_bias_steps,
    keep: tl.float64,
    keeps,
    keeps_step,
    pull: tl.float64,
    pulls,
    pulls_step,
    members,
    outputs,
    inputs,
    terms: tl.constexpr,
    kept: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    deep: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    group = client // members
    row = (tl.program_id(1) * tall + tl.arange(0, tall))[:, None]
    column = (tl.program_id(2) * wide + tl.arange(0, wide))[None, :]
    term = tl.arange(0, deep)
    one = _read(left, left_steps, client, row, term[None, :], outputs, terms)
    other = _read(right, right_steps, client, term[:, None], column, terms, inputs)
    keep = _factor(keep, keeps, keeps_step, client, weight.dtype.element_ty)
    pull = _factor(pull, pulls, pulls_step, client, weight.dtype.element_ty)
    total = tl.dot(one, other, input_precision="ieee")
    if kept:
        total += keep * _read(weight, weight_steps, client, row, column, outputs, inputs)
    if center is not None:
        total += pull * _read(center, center_steps, group, row, column, outputs, inputs)
    tl.store(_at(weight, weight_steps, client, row, column), total, mask=(row < outputs) & (column < inputs))
    # Whoever has the first inputs has the bias too.
    if tl.program_id(2) == 0:
        beside = tl.sum(one, 1)[:, None]
        if kept:
            beside += keep * _read(bias, bias_steps, client, 0, row, 1, outputs)
        if center_bias is not None:
            beside += pull * _read(center_bias, center_bias_steps, group, 0, row, 1, outputs)
        tl.store(_at(bias, bias_steps, client, 0, row), beside, mask=row < outputs)


@triton.jit
def _at(matrices, steps, which, row, column):
    """Where numbers of one of a stack of matrices lie."""
    return matrices + which * steps[0] + row * steps[1] + column * steps[2]


@triton.jit
def _read(matrices, steps, which, row, column, rows, columns):
    """Those numbers, and zeros beyond the rows and columns that there are."""
    return tl.load(_at(matrices, steps, which, row, column), mask=(row < rows) & (column < columns), other=0)


@triton.jit
def _factor(number, numbers, step, client, kind: tl.constexpr):
    """The number for all clients, or this one's own."""
    return tl.full((1, 1), number, kind) if numbers is None else tl.load(numbers + client * step)

"""Pooling, and the numbers of a norm."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sfedhp.nn.kernels import tiles
from sfedhp.nn.kernels.tiles import corner, four, shared, square


def pool(raw: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of every 2 × 2 pixels, and the parts (units, chunks, 2, channels) of a norm's moments.

    Args:
        raw: (units, rows, height, width, channels), height and width even.
    """
    units, rows, height, width, channels = raw.shape
    largest = raw.new_empty(units, rows, height // 2, width // 2, channels)
    count, tall, wide = tiles.tiled(largest)
    parts = raw.new_empty(units, triton.cdiv(count, tall), 2, channels)
    _pool[(units, parts.shape[1])](raw, largest, parts, count, width // 2, channels, tall, wide)
    return largest, parts


def settle(
    parts: Tensor,
    largest: Tensor,
    models: Tensor,
    places: tuple[int, int],
    epsilon: float,
    size: int,
    seen: Tensor | None,
) -> Tensor:
    """The norm's `numbers`, from the parts of its moments.

    Args:
        parts: as `pool` gave them.
        largest: likewise.
        models: (groups, d).
        places: where the bias of the convolution begins in them, negative if there is none, and the gain of
            the norm, followed by its offset.
        epsilon: of the norm.
        size: how many channels in a row share statistics.
        seen: (clients, 2, channels), where mean and unbiased variance are written; None: nowhere.
    """
    count, tall, wide = tiles.tiled(largest)
    units, chunks, _, channels = parts.shape
    numbers = parts.new_empty(units, 5, channels)
    bias, gain = places
    _settle[(units,)](
        parts,
        models,
        numbers,
        numbers if seen is None else seen,
        models.stride(0),
        0 if seen is None else seen.stride(0),
        units // models.shape[0],
        count,
        chunks,
        bias,
        gain,
        epsilon,
        seen is not None,
        size,
        channels,
        tall,
        wide,
        tiles.LINES,
    )
    return numbers


@triton.jit
def _pool(
    raw,
    largest,
    parts,
    count,
    width: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
):
    unit, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pixel = (chunk * tall + tl.arange(0, tall))[:, None]
    channel = tl.arange(0, wide)[None, :]
    real = (pixel < count) & (channel < channels)
    above = raw + unit * 4 * count * channels + corner(pixel, width) * channels + channel
    below = above + 2 * width * channels
    one, two, three, last = four(above, below, channels, real)
    most = tl.maximum(tl.maximum(one, two), tl.maximum(three, last))
    tl.store(largest + (unit * count + pixel) * channels + channel, most, mask=real)
    # Mean and squares of this chunk by themselves: large means then cost no digits.
    size = 4 * tl.minimum(count - chunk * tall, tall)
    mean = (tl.sum(one + two + (three + last), 0) / size)[None, :]
    squares = square(one - mean) + square(two - mean) + (square(three - mean) + square(last - mean))
    part = parts + (unit * tl.num_programs(1) + chunk) * 2 * channels + channel
    tl.store(part, mean, mask=channel < channels)
    tl.store(part + channels, tl.sum(tl.where(real, squares, 0), 0)[None, :], mask=channel < channels)


@triton.jit
def _settle(
    parts,
    models,
    numbers,
    seen,
    model_step,
    seen_step,
    members,
    count,
    chunks: tl.constexpr,
    bias: tl.constexpr,
    gain,
    epsilon,
    watched: tl.constexpr,
    size: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    lines: tl.constexpr,
):
    unit = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, wide)
    real = channel < channels
    mine = parts + unit * chunks * 2 * channels + channel[None, :]
    total = 4 * count
    level = tl.zeros([wide], parts.dtype.element_ty)
    for first in range(0, chunks, lines):
        chunk = (first + tl.arange(0, lines))[:, None]
        weight = 4 * tl.minimum(count - chunk * tall, tall)
        part = tl.load(mine + chunk * 2 * channels, mask=(chunk < chunks) & real[None, :], other=0)
        level += tl.sum(part * weight, 0)
    level = level / total
    squares = tl.zeros([wide], parts.dtype.element_ty)
    for first in range(0, chunks, lines):
        chunk = (first + tl.arange(0, lines))[:, None]
        inside = (chunk < chunks) & real[None, :]
        weight = 4 * tl.minimum(count - chunk * tall, tall)
        part = tl.load(mine + chunk * 2 * channels, mask=inside, other=0)
        inner = tl.load(mine + chunk * 2 * channels + channels, mask=inside, other=0)
        squares += tl.sum(tl.where(inside, inner + square(part - level[None, :]) * weight, 0), 0)
    model = models + unit // members * model_step + channel
    slope = tl.load(model + gain, mask=real, other=1)
    height = tl.load(model + gain + channels, mask=real, other=0)
    sign = tl.where(slope < 0, -1, 1)
    base = level * 0
    if bias >= 0:
        base = tl.load(model + bias, mask=real, other=0)
    own = level * sign + base
    mean = shared(own, wide, size)
    variance = shared(squares / total + square(own - mean), wide, size)
    inverse = 1 / tl.sqrt(variance + epsilon)
    shift = (base - mean) * inverse
    number = numbers + unit * 5 * channels + channel
    tl.store(number, inverse * sign, mask=real)
    tl.store(number + channels, shift, mask=real)
    tl.store(number + 2 * channels, slope * inverse * sign, mask=real)
    tl.store(number + 3 * channels, height + slope * shift, mask=real)
    tl.store(number + 4 * channels, level, mask=real)
    if watched:
        place = seen + unit * seen_step + channel
        tl.store(place, mean, mask=real)
        tl.store(place + channels, squares / (total - 1), mask=real)

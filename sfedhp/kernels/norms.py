"""Pooling, and the numbers of a batch norm."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sfedhp.kernels import tiles
from sfedhp.kernels.tiles import corner, square


def pool(raw: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of every 2 × 2 pixels, and the parts (clients, chunks, 2, channels) of a norm's moments.

    Args:
        raw: (clients, rows, height, width, channels), height and width even.
    """
    clients, rows, height, width, channels = raw.shape
    largest = raw.new_empty(clients, rows, height // 2, width // 2, channels)
    count, tall, wide = tiles.tiled(largest)
    parts = raw.new_empty(clients, triton.cdiv(count, tall), 2, channels)
    _pool[(clients, parts.shape[1])](raw, largest, parts, count, width // 2, channels, tall, wide)
    return largest, parts


def settle(
    parts: Tensor,
    largest: Tensor,
    models: Tensor,
    places: tuple[int, int, int],
    epsilon: float,
    seen: Tensor,
    worn: int,
) -> Tensor:
    """The norm's `numbers`, from the parts of its moments.

    Args:
        parts: as `pool` gave them.
        largest: likewise.
        models: (groups, d).
        places: where the bias of the convolution begins in them, negative if there is none, then the gain and
            the offset.
        epsilon: of the norm.
        seen: (clients, s), where mean and unbiased variance of this batch are written.
        worn: where in it.
    """
    count, tall, wide = tiles.tiled(largest)
    clients, chunks, _, channels = parts.shape
    numbers = parts.new_empty(clients, 4, channels)
    bias, gain, offset = places
    _settle[(clients,)](
        parts,
        models,
        numbers,
        seen,
        models.stride(0),
        seen.stride(0),
        clients // models.shape[0],
        count,
        chunks,
        bias,
        gain,
        offset,
        worn,
        epsilon,
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
    client, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pixel = (chunk * tall + tl.arange(0, tall))[:, None]
    channel = tl.arange(0, wide)[None, :]
    real = (pixel < count) & (channel < channels)
    above = raw + client * 4 * count * channels + corner(pixel, width) * channels + channel
    below = above + 2 * width * channels
    one, two = tl.load(above, mask=real, other=0), tl.load(above + channels, mask=real, other=0)
    three, four = tl.load(below, mask=real, other=0), tl.load(below + channels, mask=real, other=0)
    most = tl.maximum(tl.maximum(one, two), tl.maximum(three, four))
    tl.store(largest + (client * count + pixel) * channels + channel, most, mask=real)
    # Mean and squares of this chunk by themselves: large means then cost no digits.
    size = 4 * tl.minimum(count - chunk * tall, tall)
    mean = (tl.sum(one + two + (three + four), 0) / size)[None, :]
    squares = square(one - mean) + square(two - mean) + (square(three - mean) + square(four - mean))
    part = parts + (client * tl.num_programs(1) + chunk) * 2 * channels + channel
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
    offset,
    worn,
    epsilon,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    lines: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, wide)
    real = channel < channels
    mine = parts + client * chunks * 2 * channels + channel[None, :]
    total = 4 * count
    level = tl.zeros([wide], parts.dtype.element_ty)
    for first in range(0, chunks, lines):
        chunk = (first + tl.arange(0, lines))[:, None]
        size = 4 * tl.minimum(count - chunk * tall, tall)
        mean = tl.load(mine + chunk * 2 * channels, mask=(chunk < chunks) & real[None, :], other=0)
        level += tl.sum(mean * size, 0)
    level = level / total
    squares = tl.zeros([wide], parts.dtype.element_ty)
    for first in range(0, chunks, lines):
        chunk = (first + tl.arange(0, lines))[:, None]
        inside = (chunk < chunks) & real[None, :]
        size = 4 * tl.minimum(count - chunk * tall, tall)
        mean = tl.load(mine + chunk * 2 * channels, mask=inside, other=0)
        own = tl.load(mine + chunk * 2 * channels + channels, mask=inside, other=0)
        squares += tl.sum(tl.where(inside, own + square(mean - level[None, :]) * size, 0), 0)
    variance = squares / total
    model = models + client // members * model_step + channel
    slope = tl.load(model + gain, mask=real, other=1)
    height = tl.load(model + offset, mask=real, other=0)
    sign = tl.where(slope < 0, -1, 1)
    inverse = sign / tl.sqrt(variance + epsilon)
    number = numbers + client * 4 * channels + channel
    tl.store(number, inverse, mask=real)
    tl.store(number + channels, -level * inverse, mask=real)
    tl.store(number + 2 * channels, slope * inverse, mask=real)
    tl.store(number + 3 * channels, height - slope * level * inverse, mask=real)
    mean = level * sign
    if bias >= 0:
        mean += tl.load(model + bias, mask=real, other=0)
    tl.store(seen + client * seen_step + worn + channel, mean, mask=real)
    tl.store(seen + client * seen_step + worn + channels + channel, squares / (total - 1), mask=real)

"""The way back: slopes through ReLU, batch norm and pooling."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sfedhp.kernels import tiles
from sfedhp.kernels.tiles import corner, of


def fold(
    above: Tensor, largest: Tensor, numbers: Tensor, flat: Tensor, gain: int, top: bool
) -> tuple[Tensor, Tensor]:
    """The slopes of the pooled outputs, and the scale and shift that make the rest of a raw pixel's slope.

    The second are (clients, 2, channels). The slopes of the norm's gain and offset are written on the way.

    Args:
        above: the slopes of the columns of the next block, every pixel of which sums those of the nine
            neighborhoods it stands in; at the top those of the features, channels first.
        largest: the pooled raw outputs, (clients, rows, height, width, channels).
        numbers: of the norm.
        flat: (clients, d), the gradients.
        gain: where the norm's gain begins in them, followed by its offset.
        top: whether `above` are features.
    """
    clients, _, height, width, channels = largest.shape
    count, tall, wide = tiles.tiled(largest)
    slopes = largest.new_empty(largest.shape)
    parts = largest.new_empty(clients, triton.cdiv(count, tall), 2, channels)
    rest = largest.new_empty(clients, 2, channels)
    _fold[(clients, parts.shape[1])](
        above, largest, numbers, slopes, parts, count, height, width, channels, top, tall, wide
    )
    _owe[(clients,)](
        parts, numbers, rest, flat, flat.stride(0), gain, count, parts.shape[1], channels, wide, tiles.LINES
    )
    return slopes, rest


def spread(raw: Tensor, slopes: Tensor, numbers: Tensor, rest: Tensor) -> Tensor:
    """The slopes of the raw outputs, written in their place: those of the pooled where the largest stood."""
    clients, _, _, width, channels = raw.shape
    count, tall, wide = tiles.tiled(slopes)
    grid = (clients, triton.cdiv(count, tall))
    _spread[grid](raw, slopes, numbers, rest, count, width // 2, channels, tall, wide)
    return raw


@triton.jit
def _fold(
    above,
    largest,
    numbers,
    slopes,
    parts,
    count,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    top: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
):
    client, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pixel = (chunk * tall + tl.arange(0, tall))[:, None]
    channel = tl.arange(0, wide)[None, :]
    real = (pixel < count) & (channel < channels)
    if top:
        size: tl.constexpr = height * width
        there = pixel // size * size * channels + channel * size + pixel % size
        total = tl.load(above + client * count * channels + there, mask=real, other=0)
    else:
        total = tl.zeros([tall, wide], largest.dtype.element_ty)
        line, column = pixel // width % height, pixel % width
        mine = above + client * count * 9 * channels + channel
        for neighbor in tl.static_range(9):
            down, right = line - (neighbor // 3 - 1), column - (neighbor % 3 - 1)
            inside = real & (down >= 0) & (down < height) & (right >= 0) & (right < width)
            there = pixel - (neighbor // 3 - 1) * width - (neighbor % 3 - 1)
            total += tl.load(mine + (there * 9 + neighbor) * channels, mask=inside, other=0)
    own = (client * count + pixel) * channels + channel
    number = numbers + client * 4 * channels + channel
    raw = tl.load(largest + own, mask=real, other=0)
    hat = raw * of(number, channel, channels, 0) + of(number, channel, channels, 1)
    risen = raw * of(number, channel, channels, 2) + of(number, channel, channels, 3)
    total = tl.where(risen > 0, total, 0)
    tl.store(slopes + own, total, mask=real)
    part = parts + (client * tl.num_programs(1) + chunk) * 2 * channels + channel
    tl.store(part, tl.sum(total * hat, 0)[None, :], mask=channel < channels)
    tl.store(part + channels, tl.sum(total, 0)[None, :], mask=channel < channels)


@triton.jit
def _owe(
    parts,
    numbers,
    rest,
    flat,
    flat_step,
    gain,
    count,
    chunks: tl.constexpr,
    channels: tl.constexpr,
    wide: tl.constexpr,
    lines: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, wide)
    real = channel < channels
    mine = parts + client * chunks * 2 * channels + channel[None, :]
    along = tl.zeros([wide], parts.dtype.element_ty)
    plain = tl.zeros([wide], parts.dtype.element_ty)
    for first in range(0, chunks, lines):
        chunk = (first + tl.arange(0, lines))[:, None]
        inside = (chunk < chunks) & real[None, :]
        along += tl.sum(tl.load(mine + chunk * 2 * channels, mask=inside, other=0), 0)
        plain += tl.sum(tl.load(mine + chunk * 2 * channels + channels, mask=inside, other=0), 0)
    tl.store(flat + client * flat_step + gain + channel, along, mask=real)
    tl.store(flat + client * flat_step + gain + channels + channel, plain, mask=real)
    number = numbers + client * 4 * channels + channel
    # δraw = steep (δ − x̂ mean(δ x̂) − mean(δ)), the means over all raw pixels of a client
    steep = of(number, channel, channels, 2) / (-4 * count)
    share = along * steep
    owed = rest + client * 2 * channels + channel
    tl.store(owed, share * of(number, channel, channels, 0), mask=real)
    tl.store(owed + channels, plain * steep + share * of(number, channel, channels, 1), mask=real)


@triton.jit
def _spread(
    raw,
    slopes,
    numbers,
    rest,
    count,
    width: tl.constexpr,
    channels: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
):
    client = tl.program_id(0).to(tl.int64)
    pixel = (tl.program_id(1) * tall + tl.arange(0, tall))[:, None]
    channel = tl.arange(0, wide)[None, :]
    real = (pixel < count) & (channel < channels)
    above = raw + client * 4 * count * channels + corner(pixel, width) * channels + channel
    below = above + 2 * width * channels
    one, two = tl.load(above, mask=real, other=0), tl.load(above + channels, mask=real, other=0)
    three, four = tl.load(below, mask=real, other=0), tl.load(below + channels, mask=real, other=0)
    slope = tl.load(slopes + (client * count + pixel) * channels + channel, mask=real, other=0)
    slope *= of(numbers + client * 4 * channels + channel, channel, channels, 2)
    owed = rest + client * 2 * channels + channel
    scale, shift = of(owed, channel, channels, 0), of(owed, channel, channels, 1)
    most = tl.maximum(tl.maximum(one, two), tl.maximum(three, four))
    # Of equally large ones the first was chosen.
    first = one == most
    second = (two == most) & ~first
    third = (three == most) & ~(first | second)
    fourth = ~(first | second | third)
    tl.store(above, one * scale + shift + tl.where(first, slope, 0), mask=real)
    tl.store(above + channels, two * scale + shift + tl.where(second, slope, 0), mask=real)
    tl.store(below, three * scale + shift + tl.where(third, slope, 0), mask=real)
    tl.store(below + channels, four * scale + shift + tl.where(fourth, slope, 0), mask=real)

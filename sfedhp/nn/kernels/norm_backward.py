"""The way back: slopes through ReLU, norm and pooling."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sfedhp.nn.kernels import tiles
from sfedhp.nn.kernels.tiles import corner, four, of, shared


def fold(above: Tensor, largest: Tensor, numbers: Tensor, top: bool) -> tuple[Tensor, Tensor]:
    """The slopes of the pooled outputs, and parts (units, chunks, 2, channels) of sums over them.

    Args:
        above: the slopes of the columns of the next block, every pixel of which sums those of the nine
            neighborhoods it stands in; at the top those of the features, channels first.
        largest: the pooled raw outputs, (units, rows, height, width, channels).
        numbers: of the norm.
        top: whether `above` are features.
    """
    units, _, height, width, channels = largest.shape
    count, tall, wide = tiles.tiled(largest)
    slopes = largest.new_empty(largest.shape)
    parts = largest.new_empty(units, triton.cdiv(count, tall), 2, channels)
    _fold[(units, parts.shape[1])](
        above, largest, numbers, slopes, parts, count, height, width, channels, top, tall, wide
    )
    return slopes, parts


def owe(
    parts: Tensor,
    numbers: Tensor,
    models: Tensor,
    gain: int,
    largest: Tensor,
    size: int,
    sums: Tensor,
    biased: bool,
) -> Tensor:
    """What makes of raw pixels the rest of their slopes, beside the part where the largest stood.

    Args:
        parts: as `fold` gave them.
        numbers: of the norm.
        models: (groups, d).
        gain: where the norm's gain begins in them.
        largest: the pooled raw outputs, (units, rows, height, width, channels).
        size: how many channels in a row share statistics.
        sums: (units, 2 · channels), where the slopes of gain and offset are written; before them, in a third
            part, that of the convolution's bias if there is one to write.
        biased: whether there is.

    Returns:
        Scale and shift, (units, 2, channels).
    """
    (units, chunks, _, channels), (count, _, wide) = parts.shape, tiles.tiled(largest)
    rest = parts.new_empty(units, 2, channels)
    _owe[(units,)](
        parts,
        numbers,
        models,
        rest,
        sums,
        models.stride(0),
        sums.stride(0),
        units // models.shape[0],
        gain,
        count,
        chunks,
        biased,
        size,
        channels,
        wide,
        tiles.LINES,
    )
    return rest


def spread(raw: Tensor, slopes: Tensor, numbers: Tensor, rest: Tensor) -> Tensor:
    """The slopes of the raw outputs, written in their place: those of the pooled where the largest stood."""
    units, _, _, width, channels = raw.shape
    count, tall, wide = tiles.tiled(slopes)
    grid = (units, triton.cdiv(count, tall))
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
    unit, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pixel = (chunk * tall + tl.arange(0, tall))[:, None]
    channel = tl.arange(0, wide)[None, :]
    real = (pixel < count) & (channel < channels)
    if top:
        size: tl.constexpr = height * width
        there = pixel // size * size * channels + channel * size + pixel % size
        total = tl.load(above + unit * count * channels + there, mask=real, other=0)
    else:
        total = tl.zeros([tall, wide], largest.dtype.element_ty)
        line, column = pixel // width % height, pixel % width
        mine = above + unit * count * 9 * channels + channel
        for neighbor in tl.static_range(9):
            down, right = line - (neighbor // 3 - 1), column - (neighbor % 3 - 1)
            inside = real & (down >= 0) & (down < height) & (right >= 0) & (right < width)
            there = pixel - (neighbor // 3 - 1) * width - (neighbor % 3 - 1)
            total += tl.load(mine + (there * 9 + neighbor) * channels, mask=inside, other=0)
    own = (unit * count + pixel) * channels + channel
    number = numbers + unit * 5 * channels + channel
    raw = tl.load(largest + own, mask=real, other=0)
    hat = raw * of(number, channel, channels, 0) + of(number, channel, channels, 1)
    risen = raw * of(number, channel, channels, 2) + of(number, channel, channels, 3)
    total = tl.where(risen > 0, total, 0)
    tl.store(slopes + own, total, mask=real)
    part = parts + (unit * tl.num_programs(1) + chunk) * 2 * channels + channel
    tl.store(part, tl.sum(total * hat, 0)[None, :], mask=channel < channels)
    tl.store(part + channels, tl.sum(total, 0)[None, :], mask=channel < channels)


@triton.jit
def _owe(
    parts,
    numbers,
    models,
    rest,
    sums,
    model_step,
    sums_step,
    members,
    gain,
    count,
    chunks: tl.constexpr,
    biased: tl.constexpr,
    size: tl.constexpr,
    channels: tl.constexpr,
    wide: tl.constexpr,
    lines: tl.constexpr,
):
    unit = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, wide)
    real = channel < channels
    mine = parts + unit * chunks * 2 * channels + channel[None, :]
    along = tl.zeros([wide], parts.dtype.element_ty)
    plain = tl.zeros([wide], parts.dtype.element_ty)
    for first in range(0, chunks, lines):
        chunk = (first + tl.arange(0, lines))[:, None]
        inside = (chunk < chunks) & real[None, :]
        along += tl.sum(tl.load(mine + chunk * 2 * channels, mask=inside, other=0), 0)
        plain += tl.sum(tl.load(mine + chunk * 2 * channels + channels, mask=inside, other=0), 0)
    number = numbers + unit * 5 * channels + channel
    scale, shift = of(number, channel, channels, 0), of(number, channel, channels, 1)
    slope = tl.load(models + unit // members * model_step + gain + channel, mask=real, other=0)
    # δraw = scale (g δ − x̂ mean(g δ x̂) − mean(g δ)), the means over all raw pixels that share statistics
    tilt = scale * shared(slope * along, wide, size) / (-4 * count)
    rest_scale = tilt * scale
    rest_shift = tilt * shift + scale * shared(slope * plain, wide, size) / (-4 * count)
    owed = rest + unit * 2 * channels + channel
    tl.store(owed, rest_scale, mask=real)
    tl.store(owed + channels, rest_shift, mask=real)
    sums += unit * sums_step + channel
    if biased:
        # Σ δraw, with the sign of the gain as the raw pixels have it
        level = of(number, channel, channels, 4)
        total = slope * scale * plain + (rest_scale * level + rest_shift) * (4 * count)
        tl.store(sums, tl.where(slope < 0, -total, total), mask=real)
        sums += channels
    tl.store(sums, along, mask=real)
    tl.store(sums + channels, plain, mask=real)


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
    unit = tl.program_id(0).to(tl.int64)
    pixel = (tl.program_id(1) * tall + tl.arange(0, tall))[:, None]
    channel = tl.arange(0, wide)[None, :]
    real = (pixel < count) & (channel < channels)
    above = raw + unit * 4 * count * channels + corner(pixel, width) * channels + channel
    below = above + 2 * width * channels
    one, two, three, last = four(above, below, channels, real)
    slope = tl.load(slopes + (unit * count + pixel) * channels + channel, mask=real, other=0)
    slope *= of(numbers + unit * 5 * channels + channel, channel, channels, 2)
    owed = rest + unit * 2 * channels + channel
    scale, shift = of(owed, channel, channels, 0), of(owed, channel, channels, 1)
    most = tl.maximum(tl.maximum(one, two), tl.maximum(three, last))
    # Of equally large ones the first was chosen.
    first = one == most
    second = (two == most) & ~first
    third = (three == most) & ~(first | second)
    fourth = ~(first | second | third)
    tl.store(above, one * scale + shift + tl.where(first, slope, 0), mask=real)
    tl.store(above + channels, two * scale + shift + tl.where(second, slope, 0), mask=real)
    tl.store(below, three * scale + shift + tl.where(third, slope, 0), mask=real)
    tl.store(below + channels, last * scale + shift + tl.where(fourth, slope, 0), mask=real)

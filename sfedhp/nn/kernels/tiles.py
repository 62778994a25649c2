"""How the kernels divide pixels among their programs, and functions that several kernels share."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

TILE = 1024  # numbers of each tensor that a program works on at once
CHUNKS_AT_ONCE = 32  # partial sums that are loaded and added at once


class Tiling(NamedTuple):
    """How the pooled pixels of a unit are divided into chunks, one for each program."""

    pixels: int  # pooled pixels of a unit
    block_pixels: int  # of those, how many a chunk has
    block_channels: int  # channels, rounded up to a power of two


def tiling(pooled: Tensor) -> Tiling:
    """The tiling of pooled outputs (units, rows, height, width, channels)."""
    block_channels = next_power_of_2(pooled.shape[-1])
    return Tiling(pooled[0, ..., 0].numel(), max(1, TILE // block_channels), block_channels)


@triton.jit
def chunk_indices(pixels, channels: tl.constexpr, block_pixels: tl.constexpr, block_channels: tl.constexpr):
    """Of a program in a grid (units, chunks): unit, chunk, pixels (block, 1), channels (1, block), mask."""
    unit, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pixel = (chunk * block_pixels + tl.arange(0, block_pixels))[:, None]
    channel = tl.arange(0, block_channels)[None, :]
    return unit, chunk, pixel, channel, (pixel < pixels) & (channel < channels)


@triton.jit
def partial_sums(parts, chunks: tl.constexpr, channels: tl.constexpr, block_channels: tl.constexpr):
    """Of a program in a grid (units,): unit, channels, mask, and pointers to (units, chunks, 2, channels)."""
    unit = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, block_channels)
    return unit, channel, channel < channels, parts + unit * chunks * 2 * channels + channel[None, :]


@triton.jit
def next_chunks(first, chunks: tl.constexpr, real, chunks_at_once: tl.constexpr):
    """The numbers of some chunks from `first` on (chunks, 1), and which of their channels there are."""
    chunk = (first + tl.arange(0, chunks_at_once))[:, None]
    return chunk, (chunk < chunks) & real[None, :]


@triton.jit
def top_left(pixel, width: tl.constexpr):
    """Index of the top left of the 2 × 2 raw pixels of a pooled pixel; `width` is that of the pooled image.

    It counts the raw pixels of a unit, whose images follow one another without a gap.
    """
    return pixel // width * (4 * width) + pixel % width * 2


@triton.jit
def load_2x2(raw, unit, pixel, channel, real, pixels, width: tl.constexpr, channels: tl.constexpr):
    """The 2 × 2 raw pixels of pooled ones, line by line; and pointers to the left ones of both lines."""
    above = raw + unit * 4 * pixels * channels + top_left(pixel, width) * channels + channel
    below = above + 2 * width * channels
    one, two = tl.load(above, mask=real, other=0), tl.load(above + channels, mask=real, other=0)
    three, last = tl.load(below, mask=real, other=0), tl.load(below + channels, mask=real, other=0)
    return one, two, three, last, above, below


@triton.jit
def coefficient(pointer, channel, channels: tl.constexpr, index: tl.constexpr):
    """Number `index` of every channel, given a pointer to number 0 in a layout (..., numbers, channels)."""
    return tl.load(pointer + index * channels, mask=channel < channels, other=0)


@triton.jit
def square(value):
    """The square of each value."""
    return value * value


@triton.jit
def group_mean(value, block_channels: tl.constexpr, group_channels: tl.constexpr):
    """Each channel's value replaced by the mean over the consecutive channels that share statistics."""
    if group_channels == 1:
        mean = value
    else:
        shape: tl.constexpr = (block_channels // group_channels, group_channels)
        groups = tl.sum(tl.reshape(value, shape), 1) / group_channels
        mean = tl.reshape(tl.broadcast_to(groups[:, None], shape), (block_channels,))
    return mean

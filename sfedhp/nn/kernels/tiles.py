"""How kernels divide pooled pixels among their programs."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

TILE = 1024  # numbers that a program holds of each tensor it reads
LINES = 32  # of partial sums that are added at once


def tiled(pooled: Tensor) -> tuple[int, int, int]:
    """How many pooled pixels a unit has, how many of them a program takes, and its width in channels."""
    wide = next_power_of_2(pooled.shape[-1])
    return pooled[0, ..., 0].numel(), max(1, TILE // wide), wide


@triton.jit
def corner(pixel, width: tl.constexpr):
    """Of the 2 × 2 raw pixels that a pooled one is of; images follow one another without a gap."""
    return pixel // width * (4 * width) + pixel % width * 2


@triton.jit
def four(above, below, channels: tl.constexpr, real):
    """The 2 × 2 raw pixels, line by line."""
    one, two = tl.load(above, mask=real, other=0), tl.load(above + channels, mask=real, other=0)
    three, last = tl.load(below, mask=real, other=0), tl.load(below + channels, mask=real, other=0)
    return one, two, three, last


@triton.jit
def of(number, channel, channels: tl.constexpr, which: tl.constexpr):
    """One of the numbers of every channel."""
    return tl.load(number + which * channels, mask=channel < channels, other=0)


@triton.jit
def square(value):
    """Of each."""
    return value * value


@triton.jit
def shared(value, wide: tl.constexpr, size: tl.constexpr):
    """The mean of as many channels in a row as share statistics, for each of them."""
    if size == 1:
        mean = value
    else:
        groups = tl.sum(tl.reshape(value, (wide // size, size)), 1) / size
        mean = tl.reshape(tl.broadcast_to(groups[:, None], (wide // size, size)), (wide,))
    return mean

"""Columns and matrices for the products of a convolution, and where the slopes of its weights go."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

from sfedhp.nn.kernels import tiles


def matrices(models: Tensor, first: int, gain: int, outputs: int, inputs: int) -> Tensor:
    """Weights in the order of columns, with the signs of the gains: (groups, outputs, 9 · inputs).

    Args:
        models: (groups, d).
        first: where the weights (outputs, inputs, 3, 3) begin in them.
        gain: where the norm's gains (outputs) begin.
        outputs: channels.
        inputs: likewise.
    """
    groups = models.shape[0]
    ordered = models.new_empty(groups, outputs, 9 * inputs)
    block = next_power_of_2(9 * inputs)
    _matrices[(groups, outputs)](models, ordered, models.stride(0), first, gain, outputs, inputs, block)
    return ordered


def columns(pixels: Tensor, numbers: Tensor | None, channels_first: bool) -> Tensor:
    """The nine neighbors of every pixel, zeros around the image: (units, rows · pixels, 9 · channels).

    Args:
        pixels: (units, rows, height, width, channels), or (units, rows, channels, height, width).
        numbers: of the norm whose pooled raw outputs these are, still to be applied, and ReLU after it; None:
            they are taken as they are.
        channels_first: whether they are in the second form.
    """
    units, rows, *shape = pixels.shape
    height, width, channels = (*shape[1:], shape[0]) if channels_first else shape
    count = rows * height * width
    around = pixels.new_empty(units, count, 9 * channels)
    one_by_one = channels >= 16 and channels == next_power_of_2(channels)  # neighbor by neighbor
    wide = channels if one_by_one else next_power_of_2(9 * channels)
    tall = max(1, tiles.TILE // wide)
    _columns[(units, triton.cdiv(count, tall))](
        pixels,
        around,
        pixels if numbers is None else numbers,
        count,
        height,
        width,
        channels,
        1 if channels_first else channels,
        height * width if channels_first else 1,
        numbers is not None,
        tall,
        wide,
        triton.cdiv(9 * channels, wide),
    )
    return around


def gather(found: Tensor, models: Tensor, gain: int, flat: Tensor, first: int, inputs: int) -> None:
    """Write the slopes of weights where they belong.

    Args:
        found: (clients, pieces, outputs, 9 · inputs), the pieces of a sum, in the order of columns and with
            the signs of the gains.
        models: (groups, d).
        gain: where the gains begin in them.
        flat: (clients, d), the gradients.
        first: where the weights (outputs, inputs, 3, 3) begin in them.
        inputs: channels.
    """
    clients, pieces, outputs, _ = found.shape
    _gather[(clients, outputs)](
        found,
        models,
        flat,
        models.stride(0),
        flat.stride(0),
        clients // models.shape[0],
        first,
        gain,
        outputs,
        inputs,
        pieces,
        next_power_of_2(9 * inputs),
    )


@triton.jit
def _matrices(models, ordered, model_step, first, gain, outputs, inputs: tl.constexpr, block: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1)
    there = tl.arange(0, block)
    model = models + group * model_step
    sign = tl.where(tl.load(model + gain + output) < 0, -1, 1)
    inside = there < 9 * inputs
    place = first + output * 9 * inputs + there % inputs * 9 + there // inputs
    weight = tl.load(model + place, mask=inside, other=0)
    tl.store(ordered + (group * outputs + output) * 9 * inputs + there, weight * sign, mask=inside)


@triton.jit
def _columns(
    pixels,
    around,
    numbers,
    count,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    pixel_step: tl.constexpr,
    channel_step: tl.constexpr,
    bent: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    turns: tl.constexpr,
):
    unit = tl.program_id(0).to(tl.int64)
    pixel = (tl.program_id(1) * tall + tl.arange(0, tall))[:, None]
    image = pixel // (height * width)
    line, column = pixel // width % height, pixel % width
    mine = pixels + unit * count * channels
    for turn in tl.static_range(turns):
        place = turn * wide + tl.arange(0, wide)[None, :]
        neighbor, channel = place // channels, place % channels
        down, right = line + neighbor // 3 - 1, column + neighbor % 3 - 1
        real = (pixel < count) & (place < 9 * channels)
        inside = real & (down >= 0) & (down < height) & (right >= 0) & (right < width)
        there = image * (height * width * channels) + (down * width + right) * pixel_step
        value = tl.load(mine + there + channel * channel_step, mask=inside, other=0)
        if bent:
            own = numbers + unit * 5 * channels + channel
            value = value * tl.load(own + 2 * channels) + tl.load(own + 3 * channels)
            # What is not a number stays so, as with any other ReLU.
            value = tl.where(inside & ~(value <= 0), value, 0)
        tl.store(around + unit * count * 9 * channels + pixel * 9 * channels + place, value, mask=real)


@triton.jit
def _gather(
    found,
    models,
    flat,
    model_step,
    flat_step,
    members,
    first,
    gain,
    outputs,
    inputs: tl.constexpr,
    pieces: tl.constexpr,
    block: tl.constexpr,
):
    client, output = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, block)
    inside = place < 9 * inputs
    mine = found + (client * pieces * outputs + output) * 9 * inputs + place % 9 * inputs + place // 9
    total = tl.load(mine, mask=inside, other=0)
    for piece in range(1, pieces):
        total += tl.load(mine + piece * outputs * 9 * inputs, mask=inside, other=0)
    sign = tl.where(tl.load(models + client // members * model_step + gain + output) < 0, -1, 1)
    tl.store(flat + client * flat_step + first + output * 9 * inputs + place, total * sign, mask=inside)

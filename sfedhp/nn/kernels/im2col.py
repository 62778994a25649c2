"""Columns and weight matrices for a convolution as a matrix product, and where its weight gradients go.

A column holds the 3 × 3 neighborhood of a pixel, (3, 3, channels) in memory order. Weights are in the flat
vectors as (outputs, inputs, 3, 3), so both functions for weights change between the two orders.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton import next_power_of_2

from sfedhp.nn.kernels import tiles
from sfedhp.nn.kernels.norm_coefficients import COUNT, SCALE, SHIFT, NormCoefficients


def weight_matrices(models: Tensor, start: int, gain: int, outputs: int, inputs: int) -> Tensor:
    """Weights in the order of columns, times the signs of the gains: (groups, outputs, 9 · inputs).

    Args:
        models: (groups, d).
        start: where the weights (outputs, inputs, 3, 3) begin in them.
        gain: where the norm's gains (outputs) begin.
        outputs: output channels.
        inputs: input channels.
    """
    groups = models.shape[0]
    ordered = models.new_empty(groups, outputs, 9 * inputs)
    block = next_power_of_2(9 * inputs)
    _weight_matrices[(groups, outputs)](
        models, ordered, models.stride(0), start, gain, outputs, inputs, block
    )
    return ordered


def im2col(pixels: Tensor, coefficients: NormCoefficients | None, channels_first: bool) -> Tensor:
    """The 3 × 3 neighborhood of every pixel, zeros around the image: (units, rows · pixels, 9 · channels).

    Args:
        pixels: (units, rows, height, width, channels), or (units, rows, channels, height, width).
        coefficients: if given, `pixels` are the pooled raw outputs of the block below, to which its norm and
            ReLU are applied first; None: they are taken as they are.
        channels_first: whether `pixels` has the second form.
    """
    units, rows, *shape = pixels.shape
    height, width, channels = (*shape[1:], shape[0]) if channels_first else shape
    count = rows * height * width
    columns = pixels.new_empty(units, count, 9 * channels)
    one_by_one = channels >= 16 and channels == next_power_of_2(channels)  # neighbor by neighbor
    block_width = channels if one_by_one else next_power_of_2(9 * channels)
    block_pixels = max(1, tiles.TILE // block_width)
    _im2col[(units, triton.cdiv(count, block_pixels))](
        pixels,
        columns,
        pixels if coefficients is None else coefficients.values,
        count,
        height,
        width,
        channels,
        1 if channels_first else channels,
        height * width if channels_first else 1,
        coefficients is not None,
        block_pixels,
        block_width,
        triton.cdiv(9 * channels, block_width),
    )
    return columns


def scatter_weight_grad(
    partial: Tensor, models: Tensor, gain: int, grad: Tensor, start: int, inputs: int
) -> None:
    """Add up partial weight gradients, and write the sums where the weights are in the flat gradient.

    Args:
        partial: (clients, splits, outputs, 9 · inputs), in the order of columns and times the signs of the
            gains; the sum over `splits` is the gradient.
        models: (groups, d).
        gain: where the norm's gains (outputs) begin in them.
        grad: (clients, d), the flat gradients.
        start: where the weights (outputs, inputs, 3, 3) begin in them.
        inputs: input channels.
    """
    clients, splits, outputs, _ = partial.shape
    _scatter_weight_grad[(clients, outputs)](
        partial,
        models,
        grad,
        models.stride(0),
        grad.stride(0),
        clients // models.shape[0],
        start,
        gain,
        outputs,
        inputs,
        splits,
        next_power_of_2(9 * inputs),
    )


# Grid: (groups, outputs).
#   models   (groups, d), rows `model_stride` apart
#   ordered  (groups, outputs, 9 · inputs), written
@triton.jit
def _weight_matrices(
    models, ordered, model_stride, start, gain, outputs, inputs: tl.constexpr, block: tl.constexpr
):
    """Reorder one output channel's weights of one group's model."""
    group = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1)
    place = tl.arange(0, block)
    model = models + group * model_stride
    sign = tl.where(tl.load(model + gain + output) < 0, -1, 1)
    inside = place < 9 * inputs
    there = start + output * 9 * inputs + place % inputs * 9 + place // inputs
    weight = tl.load(model + there, mask=inside, other=0)
    tl.store(ordered + (group * outputs + output) * 9 * inputs + place, weight * sign, mask=inside)


# Grid: (units, tiles of pixels). A program writes `block_pixels` columns, `block_width` numbers at a time.
#   pixels        (units, count, channels); a pixel is `pixel_stride` and a channel `channel_stride` apart
#   columns       (units, count, 9 · channels), written
#   coefficients  NormCoefficients, (units, 5, channels); read only if `normalize`
#   count         rows · height · width of a unit
#   turns         how many times `block_width` make up 9 · channels
@triton.jit
def _im2col(
    pixels,
    columns,
    coefficients,
    count,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    pixel_stride: tl.constexpr,
    channel_stride: tl.constexpr,
    normalize: tl.constexpr,
    block_pixels: tl.constexpr,
    block_width: tl.constexpr,
    turns: tl.constexpr,
):
    """Write the columns of one tile of pixels."""
    unit = tl.program_id(0).to(tl.int64)
    pixel = (tl.program_id(1) * block_pixels + tl.arange(0, block_pixels))[:, None]
    image = pixel // (height * width)
    line, column = pixel // width % height, pixel % width
    mine = pixels + unit * count * channels
    for turn in tl.static_range(turns):
        place = turn * block_width + tl.arange(0, block_width)[None, :]
        neighbor, channel = place // channels, place % channels
        down, right = line + neighbor // 3 - 1, column + neighbor % 3 - 1
        real = (pixel < count) & (place < 9 * channels)
        inside = real & (down >= 0) & (down < height) & (right >= 0) & (right < width)
        there = image * (height * width * channels) + (down * width + right) * pixel_stride
        value = tl.load(mine + there + channel * channel_stride, mask=inside, other=0)
        if normalize:
            own = coefficients + unit * COUNT * channels + channel
            value = value * tl.load(own + SCALE * channels) + tl.load(own + SHIFT * channels)
            # ReLU, written so that NaN stays NaN.
            value = tl.where(inside & ~(value <= 0), value, 0)
        tl.store(columns + unit * count * 9 * channels + pixel * 9 * channels + place, value, mask=real)


# Grid: (clients, outputs).
#   partial  (clients, splits, outputs, 9 · inputs)
#   models   (groups, d), rows `model_stride` apart; `members` clients share one
#   grad     (clients, d), rows `grad_stride` apart, written
@triton.jit
def _scatter_weight_grad(
    partial,
    models,
    grad,
    model_stride,
    grad_stride,
    members,
    start,
    gain,
    outputs,
    inputs: tl.constexpr,
    splits: tl.constexpr,
    block: tl.constexpr,
):
    """Sum and reorder one output channel's weight gradients of one client."""
    client, output = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, block)
    inside = place < 9 * inputs
    mine = partial + (client * splits * outputs + output) * 9 * inputs + place % 9 * inputs + place // 9
    total = tl.load(mine, mask=inside, other=0)
    for split in range(1, splits):
        total += tl.load(mine + split * outputs * 9 * inputs, mask=inside, other=0)
    sign = tl.where(tl.load(models + client // members * model_stride + gain + output) < 0, -1, 1)
    tl.store(grad + client * grad_stride + start + output * 9 * inputs + place, total * sign, mask=inside)

"""Backward kernels of a block: gradients through ReLU, pooling and norm.

With δ the gradient of the norm's output y = g x̂ + o, nonzero only where pooling and ReLU let it pass, and
with means over all raw pixels that share statistics, the gradient of a raw output x is

    δx = HAT_SCALE · (g δ − x̂ mean(g δ x̂) − mean(g δ)) = SCALE · δ + GRAD_SCALE · x + GRAD_SHIFT.

The last two are the batch-norm correction, one scale and one shift for each unit and channel.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sfedhp.nn.kernels import tiles
from sfedhp.nn.kernels.norm_coefficients import (
    COUNT,
    HAT_SCALE,
    HAT_SHIFT,
    RAW_MEAN,
    SCALE,
    SHIFT,
    NormCoefficients,
)
from sfedhp.nn.kernels.tiles import (
    chunk_indices,
    coefficient,
    group_mean,
    load_2x2,
    next_chunks,
    partial_sums,
)


def pool_grad(
    above: Tensor, pooled: Tensor, coefficients: NormCoefficients, top: bool
) -> tuple[Tensor, Tensor]:
    """Gradients below ReLU of the pooled outputs, and sums over them in parts.

    Args:
        above: gradients of the next block's columns, (units, pixels, 9 · channels), of which every pixel's
            gradient is the sum over the nine columns it occurs in; or, for the top block, gradients of the
            features, channels first.
        pooled: the pooled raw outputs, (units, rows, height, width, channels).
        coefficients: of the norm.
        top: whether `above` are gradients of the features.

    Returns:
        The gradients δ, shaped as `pooled`; and (units, chunks, 2, channels), for each chunk Σ δ x̂ and Σ δ.
    """
    units, _, height, width, channels = pooled.shape
    pixels, block_pixels, block_channels = tiles.tiling(pooled)
    grads = pooled.new_empty(pooled.shape)
    sums = pooled.new_empty(units, triton.cdiv(pixels, block_pixels), 2, channels)
    _pool_grad[(units, sums.shape[1])](
        above,
        pooled,
        coefficients.values,
        grads,
        sums,
        pixels,
        height,
        width,
        channels,
        top,
        block_pixels,
        block_channels,
    )
    return grads, sums


def norm_grad_coefficients(
    sums: Tensor,
    coefficients: NormCoefficients,
    models: Tensor,
    gain: int,
    pooled: Tensor,
    group_channels: int,
    parameter_grads: Tensor,
    biased: bool,
) -> Tensor:
    """Scale and shift of the batch-norm correction that is added to the gradient of every raw output.

    Args:
        sums: as `pool_grad` returned them.
        coefficients: of the norm.
        models: (groups, d).
        gain: where the norm's gain begins in them.
        pooled: the pooled raw outputs, (units, rows, height, width, channels).
        group_channels: how many consecutive channels share statistics; 1 for batch norm.
        parameter_grads: (units, 2 · channels), memory for the gradients of gain and offset; with `biased`
            (units, 3 · channels), those of the convolution's bias first.
        biased: whether to write the gradients of the convolution's bias.

    Returns:
        GRAD_SCALE and GRAD_SHIFT of the module's docstring, (units, 2, channels).
    """
    (units, chunks, _, channels), (pixels, _, block_channels) = sums.shape, tiles.tiling(pooled)
    correction = sums.new_empty(units, 2, channels)
    _norm_grad_coefficients[(units,)](
        sums,
        coefficients.values,
        models,
        correction,
        parameter_grads,
        models.stride(0),
        parameter_grads.stride(0),
        units // models.shape[0],
        gain,
        pixels,
        chunks,
        biased,
        group_channels,
        channels,
        block_channels,
        tiles.CHUNKS_AT_ONCE,
    )
    return correction


def raw_grad(raw: Tensor, grads: Tensor, coefficients: NormCoefficients, correction: Tensor) -> Tensor:
    """Gradients of the raw outputs, written over them; the pooled gradients go where the largest pixel was.

    Args:
        raw: (units, rows, height, width, channels), overwritten.
        grads: as `pool_grad` returned them.
        coefficients: of the norm.
        correction: as `norm_grad_coefficients` returned it.

    Returns:
        `raw`.
    """
    units, _, _, width, channels = raw.shape
    pixels, block_pixels, block_channels = tiles.tiling(grads)
    _raw_grad[(units, triton.cdiv(pixels, block_pixels))](
        raw,
        grads,
        coefficients.values,
        correction,
        pixels,
        width // 2,
        channels,
        block_pixels,
        block_channels,
    )
    return raw


# Grid: (units, chunks).
#   above         (units, pixels, 9, channels); if `top` (units, rows, channels, height · width)
#   pooled        (units, pixels, channels)
#   coefficients  NormCoefficients, (units, 5, channels)
#   grads         (units, pixels, channels), written
#   sums          (units, chunks, 2, channels), written: Σ δ x̂, Σ δ
@triton.jit
def _pool_grad(
    above,
    pooled,
    coefficients,
    grads,
    sums,
    pixels,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    top: tl.constexpr,
    block_pixels: tl.constexpr,
    block_channels: tl.constexpr,
):
    """Compute one chunk of the gradients δ and its partial sums."""
    unit, chunk, pixel, channel, real = chunk_indices(pixels, channels, block_pixels, block_channels)
    if top:
        size: tl.constexpr = height * width
        there = pixel // size * size * channels + channel * size + pixel % size
        total = tl.load(above + unit * pixels * channels + there, mask=real, other=0)
    else:
        total = tl.zeros([block_pixels, block_channels], pooled.dtype.element_ty)
        line, column = pixel // width % height, pixel % width
        mine = above + unit * pixels * 9 * channels + channel
        for neighbor in tl.static_range(9):
            down, right = line - (neighbor // 3 - 1), column - (neighbor % 3 - 1)
            inside = real & (down >= 0) & (down < height) & (right >= 0) & (right < width)
            there = pixel - (neighbor // 3 - 1) * width - (neighbor % 3 - 1)
            total += tl.load(mine + (there * 9 + neighbor) * channels, mask=inside, other=0)
    own = (unit * pixels + pixel) * channels + channel
    norm = coefficients + unit * COUNT * channels + channel
    raw = tl.load(pooled + own, mask=real, other=0)
    hat_scale = coefficient(norm, channel, channels, HAT_SCALE)
    hat = raw * hat_scale + coefficient(norm, channel, channels, HAT_SHIFT)
    scale = coefficient(norm, channel, channels, SCALE)
    output = raw * scale + coefficient(norm, channel, channels, SHIFT)
    total = tl.where(output > 0, total, 0)
    tl.store(grads + own, total, mask=real)
    part = sums + (unit * tl.num_programs(1) + chunk) * 2 * channels + channel
    tl.store(part, tl.sum(total * hat, 0)[None, :], mask=channel < channels)
    tl.store(part + channels, tl.sum(total, 0)[None, :], mask=channel < channels)


# Grid: (units,).
#   sums             (units, chunks, 2, channels): Σ δ x̂, Σ δ
#   coefficients     NormCoefficients, (units, 5, channels)
#   models           (groups, d), rows `model_stride` apart; `members` units share one
#   correction       (units, 2, channels), written: GRAD_SCALE, GRAD_SHIFT
#   parameter_grads  (units, 2 or 3 · channels), rows `parameter_stride` apart, written: [bias,] gain, offset
@triton.jit
def _norm_grad_coefficients(
    sums,
    coefficients,
    models,
    correction,
    parameter_grads,
    model_stride,
    parameter_stride,
    members,
    gain,
    pixels,
    chunks: tl.constexpr,
    biased: tl.constexpr,
    group_channels: tl.constexpr,
    channels: tl.constexpr,
    block_channels: tl.constexpr,
    chunks_at_once: tl.constexpr,
):
    """Add up a unit's partial sums, and compute its correction and parameter gradients."""
    unit, channel, real, mine = partial_sums(sums, chunks, channels, block_channels)
    hat_sum = tl.zeros([block_channels], sums.dtype.element_ty)  # Σ δ x̂
    grad_sum = tl.zeros([block_channels], sums.dtype.element_ty)  # Σ δ
    for first in range(0, chunks, chunks_at_once):
        chunk, inside = next_chunks(first, chunks, real, chunks_at_once)
        hat_sum += tl.sum(tl.load(mine + chunk * 2 * channels, mask=inside, other=0), 0)
        grad_sum += tl.sum(tl.load(mine + chunk * 2 * channels + channels, mask=inside, other=0), 0)
    norm = coefficients + unit * COUNT * channels + channel
    hat_scale = coefficient(norm, channel, channels, HAT_SCALE)
    hat_shift = coefficient(norm, channel, channels, HAT_SHIFT)
    norm_gain = tl.load(models + unit // members * model_stride + gain + channel, mask=real, other=0)
    # δx = HAT_SCALE (g δ − x̂ mean(g δ x̂) − mean(g δ)), with x̂ = x · HAT_SCALE + HAT_SHIFT
    hat_mean = group_mean(norm_gain * hat_sum, block_channels, group_channels)
    grad_mean = group_mean(norm_gain * grad_sum, block_channels, group_channels)
    tilt = hat_scale * hat_mean / (-4 * pixels)
    grad_scale = tilt * hat_scale
    grad_shift = tilt * hat_shift + hat_scale * grad_mean / (-4 * pixels)
    own = correction + unit * 2 * channels + channel
    tl.store(own, grad_scale, mask=real)
    tl.store(own + channels, grad_shift, mask=real)
    parameter_grads += unit * parameter_stride + channel
    if biased:
        # Σ δx, times the sign of the gain as the raw pixels have it
        raw_mean = coefficient(norm, channel, channels, RAW_MEAN)
        total = norm_gain * hat_scale * grad_sum + (grad_scale * raw_mean + grad_shift) * (4 * pixels)
        tl.store(parameter_grads, tl.where(norm_gain < 0, -total, total), mask=real)
        parameter_grads += channels
    tl.store(parameter_grads, hat_sum, mask=real)
    tl.store(parameter_grads + channels, grad_sum, mask=real)


# Grid: (units, chunks).
#   raw           (units, 4 · pixels, channels), images of width 2 · width; read and written
#   grads         (units, pixels, channels)
#   coefficients  NormCoefficients, (units, 5, channels)
#   correction    (units, 2, channels): GRAD_SCALE, GRAD_SHIFT
@triton.jit
def _raw_grad(
    raw,
    grads,
    coefficients,
    correction,
    pixels,
    width: tl.constexpr,
    channels: tl.constexpr,
    block_pixels: tl.constexpr,
    block_channels: tl.constexpr,
):
    """Overwrite one chunk of raw outputs with their gradients."""
    unit, _, pixel, channel, real = chunk_indices(pixels, channels, block_pixels, block_channels)
    one, two, three, last, above, below = load_2x2(raw, unit, pixel, channel, real, pixels, width, channels)
    grad = tl.load(grads + (unit * pixels + pixel) * channels + channel, mask=real, other=0)
    grad *= coefficient(coefficients + unit * COUNT * channels + channel, channel, channels, SCALE)
    own = correction + unit * 2 * channels + channel
    scale, shift = coefficient(own, channel, channels, 0), coefficient(own, channel, channels, 1)
    largest = tl.maximum(tl.maximum(one, two), tl.maximum(three, last))
    # Of equally large pixels the first was pooled.
    first = one == largest
    second = (two == largest) & ~first
    third = (three == largest) & ~(first | second)
    fourth = ~(first | second | third)
    tl.store(above, one * scale + shift + tl.where(first, grad, 0), mask=real)
    tl.store(above + channels, two * scale + shift + tl.where(second, grad, 0), mask=real)
    tl.store(below, three * scale + shift + tl.where(third, grad, 0), mask=real)
    tl.store(below + channels, last * scale + shift + tl.where(fourth, grad, 0), mask=real)

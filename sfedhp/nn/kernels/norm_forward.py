"""Forward kernels of a block: 2 × 2 max pooling with the moments of its inputs, the norm's coefficients."""

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
from sfedhp.nn.kernels.tiles import chunk_indices, group_mean, load_2x2, next_chunks, partial_sums, square


def pool_with_moments(raw: Tensor) -> tuple[Tensor, Tensor]:
    """2 × 2 max pooling of raw outputs, and the mean and variance of those outputs in parts.

    Args:
        raw: (units, rows, height, width, channels), height and width even.

    Returns:
        The pooled outputs (units, rows, height / 2, width / 2, channels); and (units, chunks, 2, channels),
        for each chunk the mean of its raw pixels and the sum of their squared distances from it.
    """
    units, rows, height, width, channels = raw.shape
    pooled = raw.new_empty(units, rows, height // 2, width // 2, channels)
    pixels, block_pixels, block_channels = tiles.tiling(pooled)
    moments = raw.new_empty(units, triton.cdiv(pixels, block_pixels), 2, channels)
    _pool_with_moments[(units, moments.shape[1])](
        raw, pooled, moments, pixels, width // 2, channels, block_pixels, block_channels
    )
    return pooled, moments


def norm_coefficients(
    moments: Tensor,
    pooled: Tensor,
    models: Tensor,
    places: tuple[int, int],
    epsilon: float,
    group_channels: int,
    batch_statistics: Tensor | None,
) -> NormCoefficients:
    """The norm's coefficients for a batch, from the moments of its raw outputs.

    Args:
        moments: as `pool_with_moments` returned them.
        pooled: likewise.
        models: (groups, d).
        places: where in them the bias of the convolution begins, negative if there is none, and where the
            gain of the norm begins, followed by its offset.
        epsilon: of the norm.
        group_channels: how many consecutive channels share statistics; 1 for batch norm.
        batch_statistics: (clients, 2, channels), memory for mean and unbiased variance; None: not wanted.
    """
    pixels, block_pixels, block_channels = tiles.tiling(pooled)
    units, chunks, _, channels = moments.shape
    coefficients = moments.new_empty(units, 5, channels)
    bias, gain = places
    _norm_coefficients[(units,)](
        moments,
        models,
        coefficients,
        coefficients if batch_statistics is None else batch_statistics,
        models.stride(0),
        0 if batch_statistics is None else batch_statistics.stride(0),
        units // models.shape[0],
        pixels,
        chunks,
        bias,
        gain,
        epsilon,
        batch_statistics is not None,
        group_channels,
        channels,
        block_pixels,
        block_channels,
        tiles.CHUNKS_AT_ONCE,
    )
    return NormCoefficients(coefficients)


# Grid: (units, chunks).
#   raw      (units, 4 · pixels, channels), images of width 2 · width
#   pooled   (units, pixels, channels), written
#   moments  (units, chunks, 2, channels), written: mean, sum of squared distances from it
@triton.jit
def _pool_with_moments(
    raw,
    pooled,
    moments,
    pixels,
    width: tl.constexpr,
    channels: tl.constexpr,
    block_pixels: tl.constexpr,
    block_channels: tl.constexpr,
):
    """Pool one chunk, and compute its moments."""
    unit, chunk, pixel, channel, real = chunk_indices(pixels, channels, block_pixels, block_channels)
    one, two, three, last, _, _ = load_2x2(raw, unit, pixel, channel, real, pixels, width, channels)
    largest = tl.maximum(tl.maximum(one, two), tl.maximum(three, last))
    tl.store(pooled + (unit * pixels + pixel) * channels + channel, largest, mask=real)
    # Moments of each chunk around its own mean: a large mean then costs no precision.
    count = 4 * tl.minimum(pixels - chunk * block_pixels, block_pixels)
    mean = (tl.sum(one + two + (three + last), 0) / count)[None, :]
    squares = square(one - mean) + square(two - mean) + (square(three - mean) + square(last - mean))
    part = moments + (unit * tl.num_programs(1) + chunk) * 2 * channels + channel
    tl.store(part, mean, mask=channel < channels)
    tl.store(part + channels, tl.sum(tl.where(real, squares, 0), 0)[None, :], mask=channel < channels)


# Grid: (units,).
#   moments       (units, chunks, 2, channels)
#   models        (groups, d), rows `model_stride` apart; `members` units share one
#   coefficients  NormCoefficients, (units, 5, channels), written
#   statistics    (clients, 2, channels), rows `statistics_stride` apart, written if `wants_statistics`
#   bias, gain    where the convolution's bias (negative: none) and the norm's gain begin in a model
@triton.jit
def _norm_coefficients(
    moments,
    models,
    coefficients,
    statistics,
    model_stride,
    statistics_stride,
    members,
    pixels,
    chunks: tl.constexpr,
    bias: tl.constexpr,
    gain,
    epsilon,
    wants_statistics: tl.constexpr,
    group_channels: tl.constexpr,
    channels: tl.constexpr,
    block_pixels: tl.constexpr,
    block_channels: tl.constexpr,
    chunks_at_once: tl.constexpr,
):
    """Combine a unit's moments into its coefficients."""
    unit, channel, real, mine = partial_sums(moments, chunks, channels, block_channels)
    count = 4 * pixels
    raw_mean = tl.zeros([block_channels], moments.dtype.element_ty)
    for first in range(0, chunks, chunks_at_once):
        chunk, inside = next_chunks(first, chunks, real, chunks_at_once)
        weight = 4 * tl.minimum(pixels - chunk * block_pixels, block_pixels)
        part = tl.load(mine + chunk * 2 * channels, mask=inside, other=0)
        raw_mean += tl.sum(part * weight, 0)
    raw_mean = raw_mean / count
    squares = tl.zeros([block_channels], moments.dtype.element_ty)
    for first in range(0, chunks, chunks_at_once):
        chunk, inside = next_chunks(first, chunks, real, chunks_at_once)
        weight = 4 * tl.minimum(pixels - chunk * block_pixels, block_pixels)
        part = tl.load(mine + chunk * 2 * channels, mask=inside, other=0)
        within = tl.load(mine + chunk * 2 * channels + channels, mask=inside, other=0)
        squares += tl.sum(tl.where(inside, within + square(part - raw_mean[None, :]) * weight, 0), 0)
    model = models + unit // members * model_stride + channel
    norm_gain = tl.load(model + gain, mask=real, other=1)
    norm_offset = tl.load(model + gain + channels, mask=real, other=0)
    sign = tl.where(norm_gain < 0, -1, 1)
    conv_bias = raw_mean * 0
    if bias >= 0:
        conv_bias = tl.load(model + bias, mask=real, other=0)
    own_mean = raw_mean * sign + conv_bias
    mean = group_mean(own_mean, block_channels, group_channels)
    variance = group_mean(squares / count + square(own_mean - mean), block_channels, group_channels)
    inverse_std = 1 / tl.sqrt(variance + epsilon)
    hat_shift = (conv_bias - mean) * inverse_std
    own = coefficients + unit * COUNT * channels + channel
    tl.store(own + HAT_SCALE * channels, inverse_std * sign, mask=real)
    tl.store(own + HAT_SHIFT * channels, hat_shift, mask=real)
    tl.store(own + SCALE * channels, norm_gain * inverse_std * sign, mask=real)
    tl.store(own + SHIFT * channels, norm_offset + norm_gain * hat_shift, mask=real)
    tl.store(own + RAW_MEAN * channels, raw_mean, mask=real)
    if wants_statistics:
        place = statistics + unit * statistics_stride + channel
        tl.store(place, mean, mask=real)
        tl.store(place + channels, squares / (count - 1), mask=real)

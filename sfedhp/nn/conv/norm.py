"""Batch norm and group norm of a stack of clients, as a few numbers for each channel.

A norm standardizes a convolution's outputs, x̂ = (x − mean) / deviation, and returns gain · x̂ + offset. For
each channel that is one multiplication and one addition, and so is its backward. This module computes those
numbers, (clients, images, channels), where `images` is 1 if all rows of a client share them; applying them
then reads every pixel once.

The *raw* outputs they are applied to are those of the convolution without its bias, perhaps times a sign for
each channel (see `Block.forward`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ChannelAffine(NamedTuple):
    """A factor and a summand for each channel, (clients, images, channels) both."""

    scale: Tensor
    shift: Tensor

    def __call__(self, pixels: Tensor) -> Tensor:
        """pixels · scale + shift, for pixels (clients, rows, height, width, channels)."""
        return torch.addcmul(per_pixel(self.shift), pixels, per_pixel(self.scale))


class Norm(NamedTuple):
    """A norm layer: where its gain (channels) and then its offset are in the flat vector, and settings."""

    start: int
    channels: int
    epsilon: float
    groups: int  # of consecutive channels that share statistics (group norm); 0: batch norm
    statistics_start: int = 0  # batch norm: where its running mean, then its variance, are in the statistics

    def gain_and_offset(self, flat: Tensor) -> Tensor:
        """A view of gain and offset, (..., 2, channels)."""
        pair = flat[..., self.start : self.start + 2 * self.channels]
        return pair.view(*flat.shape[:-1], 2, self.channels)

    def from_running_stats(
        self, gain_and_offset: Tensor, running_stats: Tensor, bias: Tensor
    ) -> ChannelAffine:
        """Batch norm in evaluation, as a function of the raw outputs.

        Args:
            gain_and_offset: (clients, 2, channels).
            running_stats: (clients, s), of the whole network.
            bias: of the convolution, (clients, 1, channels).
        """
        mean_and_variance = self._replace(start=self.statistics_start).gain_and_offset(running_stats)
        scale = gain_and_offset[:, :1] * (mean_and_variance[:, 1:] + self.epsilon).rsqrt()
        shift = torch.addcmul(gain_and_offset[:, 1:], bias - mean_and_variance[:, :1], scale)
        return ChannelAffine(scale, shift)


class SharedStatistics:
    """Which pixels share a mean and a variance."""

    def __init__(self, groups: int, real: Tensor | None):
        """Choose the pixels by the kind of norm, and leave padding out of batch norm.

        Args:
            groups: group norm: groups of channels, in each row separately. 0: batch norm, each channel's
                pixels in all rows.
            real: (clients, rows), 1 for real rows and 0 for padding; None: all rows are real.
        """
        self.groups = groups
        # Group norm does not mix rows, so padding does not matter to it.
        self.real = None if real is None or groups else real.unsqueeze(-1)
        self.rows = 1 if self.real is None else self.real.sum(1, keepdim=True)  # images to average over

    @property
    def one_image(self) -> bool:
        """Whether all rows of a client are treated as one tall image."""
        return not self.groups and self.real is None

    def images(self, pixels: Tensor) -> Tensor:
        """(clients, rows, height, width, channels) as (clients, images, pixels, channels)."""
        return pixels.flatten(1, 3).unsqueeze(1) if self.one_image else pixels.flatten(2, 3)

    def mean(self, each: Tensor) -> Tensor:
        """Values (..., clients, images, channels) averaged over what shares statistics."""
        if self.groups:
            groups = each.view(*each.shape[:-1], self.groups, -1)
            return groups.mean(-1, keepdim=True).expand_as(groups).flatten(-2)
        if self.real is not None and isinstance(self.rows, Tensor):
            return (each * self.real).sum(-2, keepdim=True) / self.rows.clamp_min(1)
        return each


class NormState(NamedTuple):
    """A norm's statistics of a batch, and what follows; tensors are (clients, images or 1, channels)."""

    shared: SharedStatistics
    pixels: int  # of an image
    gain: Tensor
    raw_mean: Tensor  # of each image's raw pixels
    mean: Tensor
    variance: Tensor
    inverse_std: Tensor
    grad_scale: (
        Tensor  # factor from the gradient of an output to that of its raw pixel, without the correction
    )
    standardize: ChannelAffine  # from raw pixels to x̂
    normalize: ChannelAffine  # from raw pixels to gain · x̂ + offset

    @classmethod
    def measure(
        cls,
        norm: Norm,
        gain_and_offset: Tensor,
        bias: Tensor,
        raw: Tensor,
        signs: Tensor | None,
        real: Tensor | None,
    ) -> NormState:
        """The state for a batch.

        Args:
            norm: the layer.
            gain_and_offset: of every client, (clients, 2, channels).
            bias: of the convolution, (clients, 1, channels).
            raw: its outputs without the bias, (clients, rows, height, width, channels).
            signs: 1 or −1 by which they were multiplied, (clients, 1, channels); None: by nothing.
            real: (clients, rows), which rows are not padding; None: all.
        """
        gain, offset = gain_and_offset[:, :1], gain_and_offset[:, 1:]
        shared = SharedStatistics(norm.groups, None if real is None else real.to(raw.dtype))
        images = shared.images(raw)
        raw_mean, variance = _moments(images)
        own_mean = raw_mean + bias if signs is None else torch.addcmul(bias, raw_mean, signs)
        mean = shared.mean(own_mean)
        if not shared.one_image:
            variance = shared.mean((own_mean - mean).square_().add_(variance))
        inverse_std = (variance + norm.epsilon).rsqrt_()
        standardize = ChannelAffine(
            inverse_std if signs is None else inverse_std * signs, (bias - mean) * inverse_std
        )
        normalize = ChannelAffine(gain * standardize.scale, torch.addcmul(offset, gain, standardize.shift))
        grad_scale = normalize.scale if signs is None else gain * inverse_std
        return cls(
            shared,
            images.shape[2],
            gain,
            raw_mean,
            mean,
            variance,
            inverse_std,
            grad_scale,
            standardize,
            normalize,
        )

    def batch_statistics(self) -> list[Tensor]:
        """Mean and unbiased variance of the batch, (clients, channels) each, to update the running ones."""
        count = self.shared.rows * self.pixels
        return [self.mean.squeeze(1), (self.variance * (count / (count - 1))).squeeze(1)]

    def backward(self, grads: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor | None, ChannelAffine]:
        """Gradients of the norm's parameters, and the correction to the gradients of its inputs.

        With g the gain and means over all pixels that share statistics, the gradient of an input is

            δx = (g δ − x̂ mean(g δ x̂) − mean(g δ)) / deviation.

        The first term is `grad_scale` · δ; the other two are the correction, an affine function of x.

        Args:
            grads: δ where it is not zero, (clients, rows, height, width, channels).
            chosen: the raw pixels there, of the same shape.

        Returns:
            The gradients of gain and offset, (clients, 2, channels); those of the convolution's bias,
            (clients, 1, channels), or None if they are zero; and the correction as a function of the raw
            pixels.
        """
        hat_sum = self.shared.images(self.standardize(chosen).mul_(grads)).sum(2)
        sums = torch.stack([hat_sum, self.shared.images(grads).sum(2)])
        one_image = self.shared.one_image
        means = sums * self.grad_scale if one_image else self.shared.mean(sums * self.gain) * self.inverse_std
        means.div_(-self.pixels)
        if self.shared.real is not None:
            means = means * self.shared.real
        correction = ChannelAffine(
            means[0] * self.standardize.scale, torch.addcmul(means[1], means[0], self.standardize.shift)
        )
        bias = None  # batch norm subtracts from all pixels what a bias adds to them
        if self.shared.groups:
            corrected = torch.addcmul(correction.shift, correction.scale, self.raw_mean) * self.pixels
            bias = torch.addcmul(corrected, self.grad_scale, sums[1]).sum(1, keepdim=True)
        return (sums.squeeze(2) if one_image else sums.sum(2)).transpose(0, 1), bias, correction


def per_pixel(numbers: Tensor) -> Tensor:
    """A view of (clients, images, channels) that broadcasts over (clients, rows, height, width, channels)."""
    return numbers[:, :, None, None]


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (clients, images, channels) of pixels (clients, images, pixels, channels)."""
    if images.device.type != "cpu":
        variance, mean = torch.var_mean(images, 2, correction=0)
        return mean, variance
    # On a CPU var_mean is ten times slower than this.
    mean = images.mean(2)
    return mean, (images - mean.unsqueeze(2)).square_().mean(2)

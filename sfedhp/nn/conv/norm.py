"""Batch norm and group norm of a stack of clients by hand, as a few numbers for each channel.

A norm makes x̂ = (x − mean) / deviation of a convolution's outputs x, then gain · x̂ + offset. That is one
multiplication and one addition for each channel, and so is its backward: here are the numbers, (clients,
images, channels), `images` being 1 where all rows of a client share them. Whoever applies them reads the
pixels once. The raw outputs they apply to lack the convolution's bias and may have a sign of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Scaling(NamedTuple):
    """A multiplication and an addition for each channel."""

    scale: Tensor
    shift: Tensor

    def __call__(self, pixels: Tensor) -> Tensor:
        """Apply them to (clients, rows, height, width, channels)."""
        return torch.addcmul(spread(self.shift), pixels, spread(self.scale))


class Norm(NamedTuple):
    """Where a norm lies in the flat vector: its gain (channels), then its offset; and what it does."""

    first: int
    channels: int
    epsilon: float
    groups: int  # of channels in a row that share statistics; 0: all rows of a channel share them
    worn: int = 0  # where its running mean begins in the statistics, then its variance

    def pair(self, flat: Tensor) -> Tensor:
        """The gain and the offset, (..., 2, channels), as a view."""
        pair = flat[..., self.first : self.first + 2 * self.channels]
        return pair.view(*flat.shape[:-1], 2, self.channels)

    def folded(self, pair: Tensor, statistics: Tensor, bias: Tensor) -> Scaling:
        """What batch norm makes of raw outputs by its running statistics (clients, s)."""
        worn = self._replace(first=self.worn).pair(statistics)
        scale = pair[:, :1] * (worn[:, 1:] + self.epsilon).rsqrt()
        return Scaling(scale, torch.addcmul(pair[:, 1:], bias - worn[:, :1], scale))


class Sharing:
    """Which pixels share a mean and a variance."""

    def __init__(self, groups: int, real: Tensor | None):
        """Prepare.

        Args:
            groups: of channels, in every row by itself; 0: a channel's pixels of all rows.
            real: (clients, rows), 1 of the rows that count and 0 of those that only pad; None: all count.
        """
        self.groups = groups
        # Group norm does not mix rows, and nobody asks what it makes of padding.
        self.real = None if real is None or groups else real.unsqueeze(-1)
        self.rows = 1 if self.real is None else self.real.sum(1, keepdim=True)  # that are one image each

    @property
    def tall(self) -> bool:
        """Whether all rows of a client are worked as one image."""
        return not self.groups and self.real is None

    def images(self, pixels: Tensor) -> Tensor:
        """(clients, rows, height, width, channels) as (clients, images, pixels, channels)."""
        return pixels.flatten(1, 3).unsqueeze(1) if self.tall else pixels.flatten(2, 3)

    def mean(self, each: Tensor) -> Tensor:
        """Of what the images (..., clients, images, channels) have each, the mean of all who share it."""
        if self.groups:
            groups = each.view(*each.shape[:-1], self.groups, -1)
            return groups.mean(-1, keepdim=True).expand_as(groups).flatten(-2)
        if self.real is not None and isinstance(self.rows, Tensor):
            return (each * self.real).sum(-2, keepdim=True) / self.rows.clamp_min(1)
        return each


class Normalized(NamedTuple):
    """How a norm works on a batch, in numbers (clients, images or 1, channels)."""

    sharing: Sharing
    pixels: int  # of an image
    gain: Tensor
    level: Tensor  # the mean of each image's raw pixels
    mean: Tensor
    variance: Tensor
    inverse: Tensor  # 1 / deviation
    steep: Tensor  # what a pixel's slope is of the slope above it, but for what it owes to the others
    bare: Scaling  # makes x̂ of raw pixels
    whole: Scaling  # gain and offset included

    @classmethod
    def of(
        cls, norm: Norm, pair: Tensor, bias: Tensor, raw: Tensor, signs: Tensor | None, real: Tensor | None
    ) -> Normalized:
        """Measure a batch.

        Args:
            norm: which.
            pair: gain and offset of every client, (clients, 2, channels).
            bias: of the convolution, (clients, 1, channels).
            raw: its outputs without the bias, (clients, rows, height, width, channels).
            signs: 1 or −1 by which they were multiplied, (clients, 1, channels); None: by nothing.
            real: (clients, rows), which rows are more than padding; None: all.
        """
        gain, offset = pair[:, :1], pair[:, 1:]
        sharing = Sharing(norm.groups, None if real is None else real.to(raw.dtype))
        images = sharing.images(raw)
        level, variance = _moments(images)
        own = level + bias if signs is None else torch.addcmul(bias, level, signs)
        mean = sharing.mean(own)
        if not sharing.tall:
            variance = sharing.mean((own - mean).square_().add_(variance))
        inverse = (variance + norm.epsilon).rsqrt_()
        bare = Scaling(inverse if signs is None else inverse * signs, (bias - mean) * inverse)
        whole = Scaling(gain * bare.scale, torch.addcmul(offset, gain, bare.shift))
        steep = whole.scale if signs is None else gain * inverse
        return cls(sharing, images.shape[2], gain, level, mean, variance, inverse, steep, bare, whole)

    def measured(self) -> list[Tensor]:
        """What batch norm's running statistics move to: mean and unbiased variance, (clients, channels)."""
        count = self.sharing.rows * self.pixels
        return [self.mean.squeeze(1), (self.variance * (count / (count - 1))).squeeze(1)]

    def backward(self, slopes: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor | None, Scaling]:
        """What the slopes of a norm's outputs come to.

        Args:
            slopes: wherever they are not zero, (clients, rows, height, width, channels).
            chosen: the raw pixels that stand there.

        Returns:
            The slopes of gain and offset, (clients, 2, channels); those of the convolution's bias, (clients,
            1, channels), None if it has none; and what makes of raw pixels what is added to their slopes
            beside the `steep` part.
        """
        along = self.sharing.images(self.bare(chosen).mul_(slopes)).sum(2)
        sums = torch.stack([along, self.sharing.images(slopes).sum(2)])
        # δx = (g δ − x̂ mean(g δ x̂) − mean(g δ)) / deviation, g the gain, the means over all who share
        tall = self.sharing.tall
        owed = sums * self.steep if tall else self.sharing.mean(sums * self.gain) * self.inverse
        owed.div_(-self.pixels)
        if self.sharing.real is not None:
            owed = owed * self.sharing.real
        rest = Scaling(owed[0] * self.bare.scale, torch.addcmul(owed[1], owed[0], self.bare.shift))
        bias = None  # whatever it adds to all who share, their mean takes away
        if self.sharing.groups:
            others = torch.addcmul(rest.shift, rest.scale, self.level) * self.pixels
            bias = torch.addcmul(others, self.steep, sums[1]).sum(1, keepdim=True)
        return (sums.squeeze(2) if tall else sums.sum(2)).transpose(0, 1), bias, rest


def spread(numbers: Tensor) -> Tensor:
    """(clients, images, channels) to multiply (clients, rows, height, width, channels)."""
    return numbers[:, :, None, None]


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each image's channels, (clients, images, pixels, channels) without pixels."""
    if images.device.type != "cpu":
        variance, mean = torch.var_mean(images, 2, correction=0)
        return mean, variance
    # A CPU's var_mean is ten times slower than this.
    mean = images.mean(2)
    return mean, (images - mean.unsqueeze(2)).square_().mean(2)

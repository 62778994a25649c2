"""Encodes numbers as integers modulo 2^k, so that masks cancel exactly in a sum.

A member multiplies its change by its share of all rows and rounds it to a word (an integer). The sum of all
members' words is then the mean of their changes. k is as large as this sum needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfedhp.core.errors import InputError

Words = npt.NDArray[np.uint64]

_WIDEST: Final = 7  # bytes of a word; with 8, a product in float64 would lose bits that count
_STATISTICS: Final = (1e6, 1e-6)  # bound and resolution of running statistics
_COLUMNS: Final = 2**22  # numbers that are rounded at a time


class SecureOptions(NamedTuple):
    """The options of secure aggregation, with which the clients' servers learn only sums."""

    bound: float  # of a weight's change
    resolution: float  # of a mean


@dataclass(frozen=True)
class Ring:
    """Words of `width` bytes with `fraction` fractional bits; sums of members' words never overflow."""

    width: int
    fraction: int
    bound: float  # larger numbers are cut to it

    @classmethod
    def of(cls, bound: float, resolution: float, members: int) -> Ring:
        """The narrowest ring for a mean of `members`, and as many bits after the point as it has room for.

        The error of a mean of all members is at most half the resolution.

        Raises:
            InputError: no word is wide enough.
        """
        needed = max(math.ceil(math.log2(members / resolution)), 0)
        for width in range(1, _WIDEST + 1):
            # The shares of all members add up to 1, and rounding adds at most half a unit for each.
            room = 2 ** (8 * width - 1) - members
            fraction = math.floor(math.log2(room / bound)) if room > 0 else -1
            if fraction >= needed:
                return cls(width, fraction, bound)
        raise InputError(
            f"secure_bound = {bound:g} and secure_resolution = {resolution:g} need words of more than "
            f"{_WIDEST} bytes for {members} clients of a server: lower the bound, or raise the resolution."
        )

    def encode(self, values: Tensor, share: Tensor | float) -> Tensor:
        """Words (int64) of finite values, each times its member's share of the mean; nearest, ties to even.

        Args:
            values: (..., n).
            share: a number, or (..., 1), float64.
        """
        scaled = values.clamp(-self.bound, self.bound).double() * share * 2.0**self.fraction
        return scaled.round_().to(torch.int64)

    def decode(self, total: Tensor, share: Tensor | float) -> Tensor:
        """The mean (float64) of members whose words add up to `total` and whose shares to `share`."""
        return total.double() / (2.0**self.fraction * share)

    def rounding(self, members: int, share: float) -> float:
        """The largest error of a mean.

        Args:
            members: how many have answered.
            share: what their shares add up to.
        """
        return members / 2 / (2.0**self.fraction * share)

    def centered(self, words: Words) -> Tensor:
        """Words modulo 2^k as the whole numbers (int64) nearest to zero."""
        shift = np.int64(64 - 8 * self.width)
        return torch.from_numpy((words.view(np.int64) << shift) >> shift)

    def pack(self, words: Words) -> bytes:
        """Words modulo 2^k as bytes, the lowest first."""
        return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : self.width].tobytes()

    def unpack(self, data: bytes | memoryview) -> Words:
        """The words in packed bytes."""
        if self.width == 4:  # the usual one
            return np.frombuffer(data, "<u4").astype(np.uint64)
        found = np.zeros((len(data) // self.width, 8), np.uint8)
        found[:, : self.width] = np.frombuffer(data, np.uint8).reshape(-1, self.width)
        return found.reshape(-1).view("<u8").astype(np.uint64)


@dataclass(frozen=True)
class MaskedFormat:
    """The format of a masked upload: the words of a model, then those of its running statistics."""

    options: SecureOptions
    members: int  # whose shares add up to 1
    size: int  # d
    statistics: int  # s

    @cached_property
    def rings(self) -> tuple[Ring, Ring]:
        """The rings of the model and of the statistics."""
        return Ring.of(*self.options, self.members), Ring.of(*_STATISTICS, self.members)

    @property
    def length(self) -> int:
        """How many bytes a masked upload has."""
        model, statistics = self.rings
        return model.width * self.size + statistics.width * self.statistics

    def unpack(self, data: bytes) -> tuple[Words, Words]:
        """The words of `length` bytes."""
        model, statistics = self.rings
        cut, view = model.width * self.size, memoryview(data)
        return model.unpack(view[:cut]), statistics.unpack(view[cut:])

    def pack(self, words: Sequence[Words]) -> bytes:
        """The words of both rings as bytes, one after the other."""
        return b"".join(ring.pack(each) for ring, each in zip(self.rings, words, strict=True))

    def encode(self, change: Tensor, statistics: Tensor, share: float) -> tuple[Words, Words]:
        """The words of one member: of the change of its model (d,), and of its statistics (s,).

        Args:
            change: of the model, finite.
            statistics: all members count alike in their mean.
            share: of the member's weight in that of all.
        """
        model, other = self.rings
        return _unsigned(model.encode(change, share)), _unsigned(other.encode(statistics, 1 / self.members))

    def decode(self, total: Sequence[Words], answered: int, share: float) -> tuple[Tensor, Tensor]:
        """The mean change and the mean statistics (float64) of the sum of words.

        Args:
            total: of the words of those who answered.
            answered: how many.
            share: what their shares add up to.
        """
        (model, other), (first, second) = self.rings, total
        return (
            model.decode(model.centered(first), share),
            other.decode(other.centered(second), answered / self.members),
        )


def mean_of_words(ring: Ring, values: Tensor, shares: Tensor) -> Tensor:
    """The mean (..., n) over members as their server computes it of the sum of their words, in float64.

    Args:
        ring: whose words they are.
        values: (..., members, n); of a member whose share is 0 nothing is read.
        shares: (..., members), float64. Where all are 0, the mean is 0.
    """
    *lead, members, size = values.shape
    wide = max(_COLUMNS // max(math.prod(lead) * members, 1), 1)
    present, total = (shares > 0).unsqueeze(-1), shares.sum(-1, keepdim=True)
    parts = []
    for part in torch.split(values, wide, -1):
        kept = torch.where(present, part, 0.0)
        words = ring.encode(kept.nan_to_num(0.0), shares.unsqueeze(-1)).sum(-2)
        mean = ring.decode(words, torch.where(total > 0, total, 1.0))
        # A run that diverged has no words; its loop ends it after this round.
        parts.append(torch.where(kept.isfinite().all(-2), mean, torch.nan))
    return torch.cat(parts, -1) if parts else values.new_zeros(*lead, size, dtype=torch.float64)


def _unsigned(words: Tensor) -> Any:
    return words.numpy().view(np.uint64)

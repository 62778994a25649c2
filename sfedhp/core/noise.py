"""Normal random numbers for differential privacy: keyed in simulations, from a secret in deployments."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfedhp.core.keys import words


class NoiseSource(Protocol):
    """The source of a role's noise."""

    def bound_to(self, *values: Tensor) -> Normals:
        """A source whose numbers also depend on these values: other values give other numbers."""


class Normals(Protocol):
    """A source of standard normal numbers: equal keys give equal numbers, other keys independent ones."""

    def __call__(self, keys: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """Independent standard normal numbers (..., count) for keys (...)."""

    def stream(self, keys: Tensor) -> Tensor:
        """The keys (...) of draws, such as mini-batches, that must be as secret as the noise."""


class KeyedNormals:
    """Numbers that follow from the keys alone, so that a simulation repeats bit for bit.

    Anyone who knows the seed can compute them, so they protect no data: a deployment uses `SecretNormals`.
    """

    def __call__(self, keys: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """See `Normals`; by the method of Box and Muller."""
        pairs = (count + 1) // 2
        bits = words(keys, 2 * pairs).view(*keys.shape, pairs, 2)
        # Without the sign 31 bits are left: the largest number is √(2 ln 2³²) = 6.7.
        unit = (bits.bitwise_and(0x7FFFFFFF).to(dtype) + 0.5).mul_(2.0**-31)
        return _box_muller(unit[..., 0], unit[..., 1])[..., :count]

    def bound_to(self, *values: Tensor) -> KeyedNormals:
        """The source itself, because the keys alone decide its numbers."""
        return self

    def stream(self, keys: Tensor) -> Tensor:
        """The keys themselves, which are not secret in a simulation."""
        return keys


KEYED: Final = KeyedNormals()


@dataclass(frozen=True, repr=False)
class SecretNormals:
    """Numbers that follow from the keys and a secret, such as 32 bytes of the system's generator.

    The bits are SHAKE-256 of both: without the secret, they cannot be distinguished from fresh random bits. A
    request that is repeated after a crash gets the same numbers again, and so reveals nothing new.
    """

    secret: bytes

    def __call__(self, keys: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """See `Normals`; by the method of Box and Muller, in float64."""
        pairs = (count + 1) // 2
        rows = []
        for bits in self._bits(keys, 2 * pairs):
            unit = torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-52)
            rows.append(_box_muller(unit[:pairs], unit[pairs:])[:count])
        return torch.stack(rows).to(keys.device, dtype).view(*keys.shape, count)

    def bound_to(self, *values: Tensor) -> SecretNormals:
        """A source with a new secret, derived from this one and the values."""
        message = hashlib.sha256()
        for value in values:
            message.update(repr((value.dtype, tuple(value.shape))).encode())
            message.update(value.detach().cpu().contiguous().numpy().tobytes())
        return SecretNormals(hmac.digest(self.secret, b"bound" + message.digest(), "sha256"))

    def stream(self, keys: Tensor) -> Tensor:
        """Keys that follow from the secret too."""
        own = SecretNormals(hmac.digest(self.secret, b"stream", "sha256"))
        numbers = [int(bits[0]) for bits in own._bits(keys, 1)]
        return torch.tensor(numbers, dtype=torch.int64, device=keys.device).view(keys.shape)

    def _bits(self, keys: Tensor, count: int) -> Iterator[NDArray[np.uint64]]:
        """For each key `count` numbers of 52 random bits."""
        for one in keys.reshape(-1, 1).cpu().numpy():
            stream = hashlib.shake_256(self.secret + one.tobytes()).digest(8 * count)
            yield np.frombuffer(stream, np.uint64) >> np.uint64(12)


def _box_muller(radius: Tensor, angle: Tensor) -> Tensor:
    """Normal numbers (..., 2 n) of two times n uniform ones (..., n) in (0, 1)."""
    radius, angle = radius.log().mul_(-2).sqrt_(), angle * (2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)

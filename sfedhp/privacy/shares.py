"""Shamir's secret sharing: any `threshold` shares give the secret, and fewer reveal nothing.

How to Share a Secret. A. Shamir. Communications of the ACM, 1979. https://doi.org/10.1145/359168.359176

`cryptography` has no secret sharing, and a secret here is a key of 32 bytes.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

_PRIME: Final = 2**256 + 297  # the smallest prime above all secrets
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_TRIES: Final = 200  # choices of shares, where some may be wrong


def split(secret: bytes, places: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Split a secret: a share is the value, at its place, of a random polynomial with the secret at 0.

    Args:
        secret: 32 bytes.
        places: whole numbers from 1 on, all different.
        threshold: how many shares give the secret.
    """
    polynomial = [int.from_bytes(secret, "big")]
    polynomial += [secrets.randbelow(_PRIME) for _ in range(threshold - 1)]
    return {place: _value(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in places}


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret of as many shares as the threshold, by place; None if they are not shares of one."""
    total = 0
    for place, share in shares.items():
        top, bottom = int.from_bytes(share, "big"), 1
        for other in shares:
            if other != place:
                top, bottom = top * other % _PRIME, bottom * (other - place) % _PRIME
        total += top * pow(bottom, -1, _PRIME)
    total %= _PRIME
    return total.to_bytes(SECRET_BYTES, "big") if total < 2 ** (8 * SECRET_BYTES) else None


def combine_checked(
    shares: Mapping[int, bytes], threshold: int, is_right: Callable[[bytes], bool]
) -> bytes | None:
    """The secret, although some shares may be wrong; None if no choice of shares gives it.

    Args:
        shares: by place.
        threshold: how many give the secret.
        is_right: whether it is the secret.
    """
    places = sorted(shares)
    if len(places) < threshold:
        return None
    chosen, draws = places[:threshold], random.Random(0)
    for _ in range(_TRIES):
        secret = combine({place: shares[place] for place in chosen})
        if secret is not None and is_right(secret):
            return secret
        # At random: choices in their order would long have the same wrong share.
        chosen = draws.sample(places, threshold)
    return None


def _value(polynomial: Sequence[int], place: int) -> int:
    total = 0
    for coefficient in reversed(polynomial):
        total = (total * place + coefficient) % _PRIME
    return total

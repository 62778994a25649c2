"""Counter-based random numbers: a draw depends only on the parts of its key.

So draws are the same for a stack of clients and one client alone, for a stack of runs and one run, and for a
resumed and an uninterrupted run. There is no generator object; everything is vectorized 64-bit integer
arithmetic (the mixing function of SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

# The purpose of a draw. It is part of every key, so that no two purposes share a draw.
ROLES: Final = {
    "initial": 1,
    "batch": 2,
    "draw": 3,
    "adapt": 4,
    "support": 5,
    "query": 6,
    "gibbs": 7,
    "client": 8,
    "epoch": 9,
    "augment": 10,
    "finish": 11,
    "holding": 12,
    "noise": 40,
    "release": 41,
    "attack": 100,
}

_GOLDEN: Final = -7046029254386353131  # 0x9e3779b97f4a7c15 as a signed number
_FIRST: Final = -4658895280553007687  # 0xbf58476d1ce4e5b9
_SECOND: Final = -7723592293110705685  # 0x94d049bb133111eb
_WORDS: Final = tuple(np.uint64(word % 2**64) for word in (_GOLDEN, _FIRST, _SECOND))
_SHIFTS: Final = tuple(np.uint64(bits) for bits in (30, 27, 31))
_LARGEST: Final = torch.iinfo(torch.int64).max
_PIECE: Final = 2**16  # numbers of a large draw that are hashed at a time


def key(*parts: int | Tensor) -> Tensor:
    """Hash integers, or broadcast integer tensors, into int64 keys, part by part."""
    device = next((part.device for part in parts if isinstance(part, Tensor)), torch.device("cpu"))
    if device.type == "cpu":
        return _on_cpu(parts)
    mixed = torch.zeros((), dtype=torch.int64, device=device)
    for part in parts:
        mixed = _absorbed(mixed, part) if mixed.is_cuda else _mix((mixed ^ part) * _GOLDEN + _GOLDEN)
    return mixed


def _on_cpu(parts: Sequence[int | Tensor]) -> Tensor:
    """`key` in NumPy, whose calls cost a fraction of torch's, and which has unsigned shifts."""
    mixed = np.zeros(1, np.uint64)  # an array, because a NumPy scalar warns on overflow
    for part in parts:
        own = part.numpy().view(np.uint64) if isinstance(part, Tensor) else np.uint64(part % 2**64)
        mixed = mixed ^ own
        mixed *= _WORDS[0]
        mixed += _WORDS[0]
        for shift, factor in zip(_SHIFTS, _WORDS[1:], strict=False):
            mixed ^= mixed >> shift
            mixed *= factor
        mixed ^= mixed >> _SHIFTS[2]
    keys = torch.from_numpy(mixed.view(np.int64))
    return keys if any(isinstance(part, Tensor) and part.ndim for part in parts) else keys[0]


def uniform(keys: Tensor) -> Tensor:
    """One float64 number in the open interval (0, 1) for each key."""
    return (_shifted(_mix(keys), 12).to(torch.float64) + 0.5) * 2.0**-52


def choose(keys: Tensor, sizes: Tensor, width: int, count: int, ragged: bool = True) -> tuple[Tensor, Tensor]:
    """Draw min(count, size) distinct rows out of the first `size` of `width`, for each key.

    Args:
        keys: (...), one for each member of the stack.
        sizes: (...), how many rows each member has; the rest of `width` is padding.
        width: rows of the padded table.
        count: rows wanted; 0 means every row, in order.
        ragged: whether some members may have fewer rows than `width`.

    Returns:
        Row numbers (..., m) and which of them are real (..., m); real rows come first.
    """
    rows = _numbers(width, sizes.device)
    if count == 0:
        return rows.expand(*sizes.shape, width), rows < sizes.unsqueeze(-1)
    count = min(count, width)
    # The rows with the smallest hashes are a uniform draw without replacement, independent of the padding.
    hashes = key(keys.unsqueeze(-1), rows)
    if ragged:
        hashes = torch.where(rows < sizes.unsqueeze(-1), hashes, _LARGEST)
    chosen = torch.topk(hashes, count, dim=-1, largest=False, sorted=True).indices
    return chosen, rows[:count] < sizes.unsqueeze(-1)


def choose_of_many(stream: Tensor, count: int, wanted: int) -> Tensor:
    """Draw distinct numbers below `count`, a million or more, (wanted,) in order: those of the smallest keys.

    It takes them in pieces that fit a processor's cache, and keeps only the smallest of each.

    Args:
        stream: (), the key of the draw; that of a number is `key(stream, number)`.
        count: of the numbers to draw from.
        wanted: how many to draw.
    """
    smallest, numbers = [], []
    for first in range(0, count, _PIECE):
        piece = torch.arange(first, min(first + _PIECE, count), device=stream.device)
        found = torch.topk(key(stream, piece), min(wanted, len(piece)), largest=False)
        smallest.append(found.values)
        numbers.append(piece[found.indices])
    places = torch.topk(torch.cat(smallest), wanted, largest=False).indices
    return torch.cat(numbers)[places].sort().values


def shuffle(keys: Tensor, sizes: Tensor, width: int) -> Tensor:
    """A random order of the first `size` of `width` rows for each key, (..., width); the rest follows."""
    rows = _numbers(width, sizes.device)
    hashes = torch.where(rows < sizes.unsqueeze(-1), key(keys.unsqueeze(-1), rows), _LARGEST)
    return hashes.argsort(dim=-1, stable=True)


def words(keys: Tensor, count: int) -> Tensor:
    """For each key `count` uniform 32-bit integers, as int32: (...) to (..., count)."""
    pairs = key(keys.unsqueeze(-1), torch.arange((count + 1) // 2, device=keys.device))
    return pairs.view(torch.int32)[..., :count]


@lru_cache(maxsize=64)
def _numbers(count: int, device: torch.device) -> Tensor:
    """The numbers 0, 1, …, count − 1, made once."""
    return torch.arange(count, device=device)


def _mix(z: Tensor) -> Tensor:
    """Mix the bits of 64-bit integers: the finalizer of SplitMix64."""
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


# The same arithmetic for one element. On a GPU every operation above is one kernel, fourteen for each part
# of a key, and they would take as long as the training steps that the draws are for.
_ABSORB: Final = f"""
template <typename T> T absorb(T mixed, T part) {{
  unsigned long long z = static_cast<unsigned long long>(mixed) ^ static_cast<unsigned long long>(part);
  z = z * {_GOLDEN % 2**64}ull + {_GOLDEN % 2**64}ull;
  z = (z ^ (z >> 30)) * {_FIRST % 2**64}ull;
  z = (z ^ (z >> 27)) * {_SECOND % 2**64}ull;
  return static_cast<T>(z ^ (z >> 31));
}}
"""


def _absorbed(mixed: Tensor, part: int | Tensor) -> Tensor:  # pragma: no cover - needs a GPU (tests/gpu)
    """One part of a key absorbed, in one kernel."""
    if isinstance(part, Tensor):
        return _kernel(False)(mixed, part)
    return _kernel(True)(mixed, part=part)


@cache
def _kernel(scalar: bool) -> Callable[..., Tensor]:  # pragma: no cover - needs a GPU (tests/gpu)
    """The kernel, which torch compiles at its first call; `scalar`: for a part that is a number."""
    create: Callable[..., Callable[..., Tensor]] = torch.cuda.jiterator._create_jit_fn
    return create(_ABSORB, part=0) if scalar else create(_ABSORB)

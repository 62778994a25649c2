"""Stores words as byte planes: all lowest bytes, …, all highest bytes.

The highest byte of trained weights (sign and most of the exponent) holds about three bits of information, and
the high bytes of an exclusive or are mostly zero; the lower bytes are noise. So each plane is stored
separately, deflated or not.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sfedhp.wire.deflate import deflate, inflate
from sfedhp.wire.header import DecodeError

Words = NDArray[np.unsignedinteger[Any]]

_LENGTH: Final = struct.Struct("<I")
# Deflating noise costs time and gains nothing: a plane is deflated only if its sampled entropy is below this.
_NOISE_BITS: Final = 7.9
_SAMPLE: Final = 2**14


def encode_planes(words: Words) -> tuple[int, list[bytes]]:
    """Which planes are deflated (bit i: plane i), and the planes as they are stored in a message."""
    deflated, pieces = 0, []
    ordered = words.astype(words.dtype.newbyteorder("<"), copy=False)
    table = ordered.view(np.uint8).reshape(len(words), words.itemsize)
    for index in range(words.itemsize):
        plane = np.ascontiguousarray(table[:, index])
        coded = deflate(plane) if _entropy(plane) < _NOISE_BITS else None
        if coded is not None and _LENGTH.size + len(coded) < len(plane):
            deflated |= 1 << index
            pieces += [_LENGTH.pack(len(coded)), coded]
        else:
            pieces.append(plane.tobytes())
    return deflated, pieces


def decode_planes(data: memoryview, deflated: int, count: int, width: int) -> Words:
    """The `count` words of `width` bytes whose planes fill `data`, neither more nor less."""
    if deflated >> width:
        raise DecodeError("The message is malformed: it deflates more planes than its values have.")
    table = np.empty((count, width), np.uint8)
    for index in range(width):
        length = count
        if deflated >> index & 1:
            if len(data) < _LENGTH.size:
                raise DecodeError("The message is malformed: it ends within its values.")
            (length,) = _LENGTH.unpack(data[: _LENGTH.size])
            data = data[_LENGTH.size :]
        if len(data) < length:
            raise DecodeError("The message is malformed: it ends within its values.")
        section, data = data[:length], data[length:]
        whole = np.frombuffer(section, np.uint8)
        table[:, index] = inflate(section, count) if deflated >> index & 1 else whole
    if len(data):
        raise DecodeError(f"The message is malformed: {len(data)} bytes follow its values.")
    return table.view(f"<u{width}").reshape(count).astype(f"u{width}", copy=False)


def _entropy(plane: NDArray[np.uint8]) -> float:
    """Shannon entropy, in bits per byte, of at most `_SAMPLE` bytes spread over the plane."""
    sample = plane[:: -(-len(plane) // _SAMPLE) or 1]
    shares = np.bincount(sample, minlength=256) / max(len(sample), 1)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())

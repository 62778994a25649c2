"""Encodes which positions of a flat tensor have a value.

Two codes, the smaller wins. Golomb–Rice codes of the gaps stay close to the entropy of positions drawn at
random (at parameter 0 they are the plain bitmap); a deflated bitmap is far below that entropy where rows or
columns of a layer are dead.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.wire.deflate import deflate, inflate
from sfedhp.wire.header import DecodeError, Positions

# Gaps are below 2³²: at this parameter the unary part of the longest still fits in 32 bytes.
_MOST_RICE: Final = 24


class CodedPositions(NamedTuple):
    """An encoded set of positions in a message."""

    kind: Positions
    rice: int
    marks: int  # how many positions are marked
    data: bytes


def encode_positions(marked: NDArray[np.bool_], indices: NDArray[np.int64]) -> CodedPositions:
    """The smaller of the codes for a mask; `indices` are the places where it is true."""
    bits = np.packbits(marked, bitorder="little")
    gaps = np.diff(indices, prepend=-1) - 1
    rice, length = _best_rice(gaps, len(marked))
    bitmap = deflate(bits)
    if len(bitmap) < length:
        return CodedPositions(Positions.BITMAP, 0, len(indices), bitmap)
    coded = _encode_gaps(gaps, rice) if rice else bits[:length].tobytes()
    return CodedPositions(Positions.GAPS, rice, len(indices), coded)


def decode_positions(data: memoryview, kind: int, rice: int, marks: int, size: int) -> NDArray[np.bool_]:
    """The mask of `size` positions that was encoded."""
    if kind == Positions.ALL:
        if marks != size or len(data) or rice:
            raise DecodeError("The message is malformed: it has positions where every position has a value.")
        return np.ones(size, np.bool_)
    if marks > size:
        raise DecodeError(f"The message is malformed: it marks {marks} positions of {size}.")
    if kind == Positions.GAPS:
        marked = np.zeros(size, np.bool_)
        marked[_decode_gaps(data, rice, marks, size)] = True
        return marked
    if kind != Positions.BITMAP or rice:
        raise DecodeError("The message is malformed: it codes its positions in an unknown way.")
    bits = np.unpackbits(inflate(data, -(-size // 8)), bitorder="little")
    if bits[size:].any() or np.count_nonzero(bits) != marks:
        raise DecodeError("The message is malformed: its bitmap does not mark as many positions as it says.")
    return bits[:size].view(np.bool_)


def _low_bytes(rice: int, marks: int) -> int:
    """Length of the low bits: `rice` bit planes, each filled up to whole bytes."""
    return rice * -(-marks // 8)


def _best_rice(gaps: NDArray[np.int64], size: int) -> tuple[int, int]:
    """The Rice parameter that makes the shortest code, and the code's length in bytes."""
    best, shortest = 0, -(-(len(gaps) + int(gaps.sum())) // 8)
    if 2 * len(gaps) >= size:
        return best, shortest  # a low bit for each gap costs more than all the zeros it could save
    for rice in range(1, _MOST_RICE + 1):
        # unary part: ⌊gap / 2ᵏ⌋ zeros and a one for each gap
        length = -(-(len(gaps) + int((gaps >> rice).sum())) // 8) + _low_bytes(rice, len(gaps))
        if length >= shortest:
            break  # more low bits cost at least a bit a gap each and save ever fewer zeros
        best, shortest = rice, length
    return best, shortest


def _encode_gaps(gaps: NDArray[np.int64], rice: int) -> bytes:
    ends = np.cumsum((gaps >> rice) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.bool_)
    unary[ends] = True
    planes = [np.packbits(unary, bitorder="little")]
    planes += [np.packbits((gaps >> bit) & 1 != 0, bitorder="little") for bit in range(rice)]
    return b"".join(plane.tobytes() for plane in planes)


def _decode_gaps(data: memoryview, rice: int, marks: int, size: int) -> NDArray[np.int64]:
    low_bytes = _low_bytes(rice, marks)
    unary_bytes = len(data) - low_bytes
    # Checked before anything is unpacked: an honest unary part has `marks` ones and at most size / 2ᵏ zeros.
    if rice > _MOST_RICE or not 0 <= unary_bytes <= -(-(marks + (size >> rice)) // 8):
        raise DecodeError("The message is malformed: its gaps have another length than they should.")
    bits = np.unpackbits(np.frombuffer(data[:unary_bytes], np.uint8), bitorder="little")
    ends = np.flatnonzero(bits.view(np.bool_))
    if len(ends) != marks or unary_bytes != (int(ends[-1]) // 8 + 1 if marks else 0):
        raise DecodeError("The message is malformed: its gaps do not mark as many positions as it says.")
    steps = np.ones(marks, np.int64)  # 1 + the low bits of each gap
    for bit, plane in enumerate(np.frombuffer(data[unary_bytes:], np.uint8).reshape(rice, -(-marks // 8))):
        steps += np.left_shift(np.unpackbits(plane, count=marks, bitorder="little"), bit, dtype=np.int64)
    # position = Σ (quotient · 2ᵏ + low bits + 1) − 1; the zeros before the i-th one count Σ quotient
    ends -= np.arange(marks)
    ends <<= rice
    ends += np.cumsum(steps, out=steps)
    ends -= 1
    if marks and ends[-1] >= size:
        raise DecodeError(f"The message is malformed: it marks a position beyond its {size}.")
    return ends

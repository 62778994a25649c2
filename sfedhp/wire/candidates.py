"""The candidate encodings of a model, and which of them is the shortest."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfedhp.wire.header import HEADER_BYTES, Difference, Header, Positions, add_header
from sfedhp.wire.planes import Words, encode_planes
from sfedhp.wire.positions import CodedPositions, encode_positions
from sfedhp.wire.values import INT8, Floats, ValueType, from_words, quantize, to_words


@dataclass(frozen=True)
class Candidate:
    """An encoding of a model: header and body, not yet joined."""

    header: Header
    pieces: tuple[bytes, ...]

    @property
    def length(self) -> int:
        """The length of the message in bytes."""
        return HEADER_BYTES + sum(map(len, self.pieces))

    def message(self) -> bytes:
        """The header with its checksum, then the pieces."""
        return add_header(self.header, b"".join(self.pieces))


def shortest(words: Words, base: Floats | None, own: ValueType, kind: ValueType) -> Candidate:
    """The shortest encoding of a model.

    Args:
        words: the model, as words of `compared(own, kind)`.
        base: a model the receiver holds too, or None.
        own: the type of the tensor.
        kind: the type of the values on the wire.
    """
    candidates = [_whole(words, own, kind)]
    if base is not None:
        candidates += _differences(words, base, own, kind)
    return min(candidates, key=lambda candidate: candidate.length)


def compared(own: ValueType, kind: ValueType) -> ValueType:
    """The type of the words in which two models are compared: the one sent, for int8 the tensor's own."""
    return own if kind == INT8 else kind


def checksum(base: Floats) -> int:
    """CRC-32 of a base, by which a receiver knows that it holds the right one."""
    return zlib.crc32(base.astype(base.dtype.newbyteorder("<"), copy=False).data)


def _whole(words: Words, own: ValueType, kind: ValueType) -> Candidate:
    """The model by itself: its non-zero values, or all if their positions would take more than the zeros."""
    present = words != 0
    if present.all():
        return _candidate(Difference.NONE, _everywhere(words), words, len(words), own, kind)
    indices = np.flatnonzero(present)
    positions = encode_positions(present, indices)
    if _denser(positions, indices, words, kind):
        return _candidate(Difference.NONE, _everywhere(words), words, len(words), own, kind)
    return _candidate(Difference.NONE, positions, words[indices], len(words), own, kind)


def _differences(words: Words, base: Floats, own: ValueType, kind: ValueType) -> Iterator[Candidate]:
    """The model as what differs from the base: its own values there, or the exclusive or of the bits."""
    reference = to_words(base, compared(own, kind))
    changed = words != reference
    indices = np.flatnonzero(changed)
    positions = encode_positions(changed, indices)
    # What changes is mostly what is not zero in the base: then it is shorter to mark where that is not so.
    unexpected = changed ^ (reference != 0)
    relative = encode_positions(unexpected, np.flatnonzero(unexpected))
    flipped = len(relative.data) < len(positions.data)
    marks, base_checksum = relative if flipped else positions, checksum(base)
    yield _candidate(Difference.NEW, marks, words[indices], len(words), own, kind, flipped, base_checksum)
    if kind != INT8:
        mixed = words ^ reference
        if _denser(marks, indices, words, kind):
            yield _candidate(
                Difference.XOR, _everywhere(words), mixed, len(words), own, kind, False, base_checksum
            )
        else:
            yield _candidate(
                Difference.XOR, marks, mixed[indices], len(words), own, kind, flipped, base_checksum
            )


def _denser(positions: CodedPositions, indices: NDArray[np.int64], words: Words, kind: ValueType) -> bool:
    """Whether values everywhere are shorter than positions and values, before deflation.

    Deflated planes do not turn this around: a dense message repeats in each plane where the zeros are.
    """
    return kind.width * len(words) <= kind.width * len(indices) + len(positions.data)


def _everywhere(words: Words) -> CodedPositions:
    return CodedPositions(Positions.ALL, 0, len(words), b"")


def _candidate(
    difference: Difference,
    positions: CodedPositions,
    content: Words,
    size: int,
    own: ValueType,
    kind: ValueType,
    flipped: bool = False,
    base_checksum: int = 0,
) -> Candidate:
    pieces = [positions.data]
    if kind == INT8:
        scales, content = quantize(from_words(content, own, np.dtype(f"f{own.width}")))
        pieces.append(scales.astype("<f4").tobytes())
    deflated, planes = encode_planes(content)
    header = Header(
        tensor_type=own.code,
        value_type=kind.code,
        difference=difference,
        positions=positions.kind,
        rice=positions.rice,
        deflated_planes=deflated,
        flipped=int(flipped),
        size=size,
        marks=positions.marks,
        positions_length=len(positions.data),
        base_checksum=base_checksum,
    )
    return Candidate(header, (*pieces, *planes))

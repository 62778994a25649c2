"""The 32-byte header of an encoded model, and the error for bytes that are not one."""

from __future__ import annotations

import struct
import zlib
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Final

MAGIC: Final = b"SFHP"
VERSION: Final = 1
# magic; version, tensor type, value type, difference, positions, Rice parameter, deflated planes, flipped;
# d, marks, length of the positions, checksum of the base; then the checksum of all the rest
_LAYOUT: Final = struct.Struct("<4s8B4I")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _LAYOUT.size + _CHECKSUM.size


class DecodeError(ValueError):
    """The bytes are not a complete, undamaged message for this receiver."""


class Difference(IntEnum):
    """The kind of difference in a message: none, new values, or exclusive or."""

    NONE = 0  # the tensor's own values; other positions are zero
    NEW = 1  # values of the tensor at positions where it differs from the base
    XOR = 2  # the exclusive or of the tensor's bits with the base's


class Positions(IntEnum):
    """How a message says which positions have a value."""

    ALL = 0  # every position has a value: no positions are sent
    GAPS = 1  # Golomb–Rice code of the gaps between marked positions
    BITMAP = 2  # one bit a position, deflated


@dataclass(frozen=True)
class Header:
    """The fields of a header, in their order on the wire; the checksums of the message are not among them."""

    tensor_type: int
    value_type: int
    difference: int
    positions: int
    rice: int
    deflated_planes: int
    flipped: int
    size: int
    marks: int
    positions_length: int
    base_checksum: int


def add_header(header: Header, body: bytes) -> bytes:
    """The message: header, checksum, body."""
    head = _LAYOUT.pack(MAGIC, VERSION, *astuple(header))
    return head + _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(head))) + body


def split_header(data: memoryview) -> tuple[Header, memoryview]:
    """Header and body of a message whose checksum is right.

    Raises:
        DecodeError: too short, another format or version, or damaged.
    """
    if len(data) < HEADER_BYTES:
        raise DecodeError(
            f"The message ends within its header: {len(data)} bytes of {HEADER_BYTES} are there."
        )
    head, body = data[: _LAYOUT.size], data[HEADER_BYTES:]
    magic, version, *fields = _LAYOUT.unpack(head)
    if magic != MAGIC:
        raise DecodeError("These bytes are not an sFedHP message: they do not begin with its mark.")
    if version != VERSION:
        raise DecodeError(
            f"The message has version {version} of the format; this reader knows version {VERSION}."
        )
    (checksum,) = _CHECKSUM.unpack(data[_LAYOUT.size : HEADER_BYTES])
    if checksum != zlib.crc32(body, zlib.crc32(head)):
        raise DecodeError("The message was damaged or cut on its way: its checksum is wrong.")
    return Header(*fields), body

"""The format of messages between a server and its members.

A message is a header of fixed size, JSON metadata, and parts; parts that are models have the format of
`sfedhp.wire`. A receiver rejects a message that is damaged, or of another protocol, run, config or round.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from sfedhp._version import __version__
from sfedhp.core.types import Clock
from sfedhp.wire import DecodeError

PROTOCOL: Final = 1
_MAGIC: Final = b"SFHM"
# magic; protocol, kind, number of parts; run, config; member, cloud round, edge round; weight; length of JSON
_HEADER: Final = struct.Struct("<4sBBB8s8sIIIdI")
_NUMBER: Final = struct.Struct("<I")
# Every protocol has the first 6 bytes of the header, and this in the metadata of a heartbeat.
_VERSION: Final = re.compile(rb'"version":"([0-9A-Za-z.+-]{1,64})"')

START: Final = Clock(0)
NO_RUN: Final = "0" * 16


class Kind(IntEnum):
    """What a message is for."""

    HELLO = 0  # a member's heartbeat: that it is there, and what it works on
    WORK = 1  # a server requests a training step
    REPLY = 2  # a member's result
    SCORE = 3  # a server requests an evaluation of models on the members' own rows
    SCORES = 4  # a member's scores
    FAREWELL = 5  # the run is over
    BYE = 6  # a member has received that
    SUM = 7  # a server requests the totals of the members' training rows, by which inputs are scaled
    SUMS = 8  # a member's totals
    KEY = 9  # a server requests the key by which others seal shares for a member
    KEYS = 10  # a member's key, signed with its certificate
    OFFER = 11  # a server requests the keys and shares for the masks of a round
    OFFERS = 12  # a member's key of the round, and shares for the others
    UNMASK = 13  # a server passes on who confirms whose uploads came, and requests shares
    SHARES = 14  # the shares that a member holds
    CONFIRM = 15  # a server says whose uploads came, and requests that members confirm it to each other
    CONFIRMED = 16  # what a member confirms to each other one


# The kind of reply to each kind of request.
REPLIES: Final = {
    Kind.WORK: Kind.REPLY,
    Kind.SCORE: Kind.SCORES,
    Kind.FAREWELL: Kind.BYE,
    Kind.SUM: Kind.SUMS,
    Kind.KEY: Kind.KEYS,
    Kind.OFFER: Kind.OFFERS,
    Kind.CONFIRM: Kind.CONFIRMED,
    Kind.UNMASK: Kind.SHARES,
}


@dataclass(frozen=True)
class Envelope:
    """One message. Run and config are 16 hexadecimal digits each; zeros where a member knows no run."""

    kind: Kind
    run: str
    config: str
    member: int  # the seat below the server
    clock: Clock = START
    weight: float = 0.0  # of a reply
    metadata: dict[str, Any] = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()


def encode_message(envelope: Envelope) -> bytes:
    """The message as bytes: header, lengths of the parts, metadata as JSON, a checksum, then the parts."""
    metadata = json.dumps(envelope.metadata, separators=(",", ":")).encode() if envelope.metadata else b""
    header = _HEADER.pack(
        _MAGIC,
        PROTOCOL,
        envelope.kind,
        len(envelope.parts),
        bytes.fromhex(envelope.run),
        bytes.fromhex(envelope.config),
        envelope.member,
        int(envelope.clock.cloud_round),
        envelope.clock.edge_round,
        envelope.weight,
        len(metadata),
    )
    lengths = b"".join(_NUMBER.pack(len(part)) for part in envelope.parts)
    checked = header + lengths + metadata
    return b"".join((checked, _NUMBER.pack(zlib.crc32(checked)), *envelope.parts))


def decode_message(data: bytes, metadata_bytes: Mapping[Kind, int] | None = None) -> Envelope:
    """The message of untrusted bytes. The parts have checksums of their own.

    Args:
        data: the bytes.
        metadata_bytes: the longest metadata of each kind of message, and which kinds there may be; None: any.

    Raises:
        DecodeError: it is not a message, of another protocol, or damaged.
    """
    if len(data) < _HEADER.size:
        raise DecodeError(f"These {len(data)} bytes are not a message: they are shorter than its header.")
    magic, protocol, kind, count, run, config, member, cloud, edge, weight, length = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError("These bytes are not a message: they do not start with its magic number.")
    if protocol != PROTOCOL:
        sender = _VERSION.search(data[: 2**12])
        version = f" of sfedhp {sender[1].decode()}" if sender else ""
        raise DecodeError(
            f"The message has protocol {protocol}{version}; this side, sfedhp {__version__}, supports "
            f"{PROTOCOL}: install the same version on both sides."
        )
    first = _HEADER.size + 4 * count  # where the metadata begins
    start = first + length + 4  # where the parts begin
    checked, checksum = data[: first + length], data[first + length : start]
    if len(checksum) < 4 or zlib.crc32(checked) != _NUMBER.unpack(checksum)[0]:
        raise DecodeError("The message is damaged or truncated: the checksum of its header is wrong.")
    if metadata_bytes is not None and length > metadata_bytes.get(kind, -1):
        raise DecodeError(f"The message has {length} bytes of metadata, which is too much for its kind.")
    parts = []
    for index in range(count):
        (size,) = _NUMBER.unpack_from(data, _HEADER.size + 4 * index)
        parts.append(bytes(data[start : start + size]))
        start += size
    if start != len(data):
        raise DecodeError("The message is malformed: its parts do not have the lengths in its header.")
    try:
        metadata = json.loads(checked[first:]) if length else {}
        known = Kind(kind)
    except (ValueError, RecursionError):
        raise DecodeError("The message is malformed: its kind or its metadata cannot be read.") from None
    if not isinstance(metadata, dict):
        raise DecodeError("The message is malformed: its metadata is not a JSON object.")
    return Envelope(
        known, run.hex(), config.hex(), member, Clock(cloud, edge), weight, metadata, tuple(parts)
    )


def kind_of(data: bytes) -> str:
    """The name of a message's kind, by its first six bytes."""
    names = {_MAGIC + bytes((PROTOCOL, kind)): kind.name.lower() for kind in Kind}
    return names.get(data[:6], "unknown")

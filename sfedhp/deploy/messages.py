"""What the roles send each other: models as wire messages, behind a small head that says what they are for.

A message is a head of fixed size, a little JSON (`facts`), and parts; those that are models have the format
of `sfedhp.wire`. A receiver takes nothing that is damaged, of another run, config or round.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import torch
from torch import Tensor

from sfedhp.types import Clock
from sfedhp.wire import DecodeError, decode, encode
from sfedhp.wire.links import WireOptions

PROTOCOL: Final = 1
_MAGIC: Final = b"SFHM"
# mark; protocol, kind, number of parts; run, config; member, cloud round, edge round; weight; length of facts
_HEAD: Final = struct.Struct("<4sBBB8s8sIIIdI")
_NUMBER: Final = struct.Struct("<I")
_EXACT: Final = {torch.float32: "float32", torch.float64: "float64"}


START: Final = Clock(0)
NO_RUN: Final = "0" * 16


class Kind(IntEnum):
    """What a message is for."""

    HELLO = 0  # a member is there; what it works on
    WORK = 1  # a server asks for an answer
    REPLY = 2  # a member's answer
    SCORE = 3  # a server asks how good models are on the members' own rows
    SCORES = 4  # a member's counts
    FAREWELL = 5  # the run is over
    BYE = 6  # a member has heard that


# With what a member answers which question.
REPLIES: Final = {Kind.WORK: Kind.REPLY, Kind.SCORE: Kind.SCORES, Kind.FAREWELL: Kind.BYE}


@dataclass(frozen=True)
class Envelope:
    """One message. A run and a config are 16 hexadecimal digits each; zeros where a member knows no run."""

    kind: Kind
    run: str
    config: str
    member: int  # the seat below the server
    clock: Clock = START
    weight: float = 0.0  # of a reply
    facts: dict[str, Any] = field(default_factory=dict)
    parts: tuple[bytes, ...] = ()


def seal(envelope: Envelope) -> bytes:
    """The message as bytes."""
    facts = json.dumps(envelope.facts, separators=(",", ":")).encode() if envelope.facts else b""
    head = _HEAD.pack(
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
        len(facts),
    )
    lengths = b"".join(_NUMBER.pack(len(part)) for part in envelope.parts)
    checked = head + lengths + facts
    return b"".join((checked, _NUMBER.pack(zlib.crc32(checked)), *envelope.parts))


def unseal(data: bytes) -> Envelope:
    """The message of these bytes, from anybody. The parts have checksums of their own.

    Raises:
        DecodeError: it is none, of another protocol, or damaged.
    """
    if len(data) < _HEAD.size:
        raise DecodeError(f"These {len(data)} bytes are no message: they end within its head.")
    magic, protocol, kind, count, run, config, member, cloud, edge, weight, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError("These bytes are no message: they do not begin with its mark.")
    if protocol != PROTOCOL:
        raise DecodeError(f"The message is of protocol {protocol}; this side speaks {PROTOCOL}.")
    first = _HEAD.size + 4 * count  # where the facts begin
    start = first + length + 4  # where the parts begin
    checked, checksum = data[: first + length], data[first + length : start]
    if len(checksum) < 4 or zlib.crc32(checked) != _NUMBER.unpack(checksum)[0]:
        raise DecodeError("The message was damaged or cut on its way: the checksum of its head is wrong.")
    parts = []
    for index in range(count):
        (size,) = _NUMBER.unpack_from(data, _HEAD.size + 4 * index)
        parts.append(bytes(data[start : start + size]))
        start += size
    if start != len(data):
        raise DecodeError("The message is malformed: its parts have not the lengths it says.")
    try:
        facts = json.loads(checked[first:]) if length else {}
        return Envelope(
            Kind(kind), run.hex(), config.hex(), member, Clock(cloud, edge), weight, facts, tuple(parts)
        )
    except ValueError:
        raise DecodeError("The message is malformed: its kind or its facts are not known.") from None


def kind_of(data: bytes) -> str:
    """The name of a message's kind, by its first six bytes."""
    names = {_MAGIC + bytes((PROTOCOL, kind)): kind.name.lower() for kind in Kind}
    return names.get(data[:6], "unknown")


def pack(
    message: Tensor, size: int, options: WireOptions, base: Tensor | None = None
) -> tuple[tuple[bytes, ...], Tensor]:
    """A model and its statistics as parts, and what the receiver will hold of them.

    Args:
        message: (d + s,).
        size: d; the s statistics behind are sent as they are.
        options: of the link.
        base: (d,), a model that the receiver holds too; used where the options ask for differences.

    Raises:
        InputError: a value is not finite.
    """
    weights, statistics = message[:size], message[size:]
    if options.threshold:
        weights = weights.masked_fill(weights.abs() < options.threshold, 0.0)
    values = None if options.values in ("exact", _EXACT[message.dtype]) else options.values
    held = base if options.difference else None
    data = encode(weights, held, values)
    if values is not None:
        weights = decode(data, held, size)
    parts = (data, encode(statistics)) if len(statistics) else (data,)
    return parts, torch.cat([weights, statistics])


def unpack(parts: Sequence[bytes], like: Tensor, tail: Tensor, base: Tensor | None = None) -> Tensor:
    """A model and its statistics (d + s,) out of parts.

    Args:
        parts: as `pack` made them.
        like: (d,), a model of the expected size and type.
        tail: (s,), the same for statistics.
        base: as `pack` had it.

    Raises:
        DecodeError: they are not a whole, finite model of this size and type.
    """
    if len(parts) != 1 + bool(len(tail)):
        raise DecodeError(f"The message has {len(parts)} parts where a model has {1 + bool(len(tail))}.")
    pieces = [decode(parts[0], base, len(like)), *(decode(part, None, len(tail)) for part in parts[1:])]
    if any(piece.dtype != like.dtype for piece in pieces):
        raise DecodeError(f"The message holds {pieces[0].dtype} where {like.dtype} is expected.")
    return torch.cat(pieces)

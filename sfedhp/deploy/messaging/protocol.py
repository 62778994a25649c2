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

from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.traffic import WAYS
from sfedhp.wire import DecodeError, decode, encode
from sfedhp.wire.link import WireOptions

PROTOCOL: Final = 1
_MAGIC: Final = b"SFHM"
# mark; protocol, kind, number of parts; run, config; member, cloud round, edge round; weight; length of facts
_HEAD: Final = struct.Struct("<4sBBB8s8sIIIdI")
_NUMBER: Final = struct.Struct("<I")
_EXACT: Final = {torch.float32: "float32", torch.float64: "float64"}
_WIDEST: Final = 8  # bytes of a weight
_LARGEST: Final = 2**53  # of the numbers that members say; above it a float is no longer exact
_SAID: Final = 500  # characters of a member's own words that are kept

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
        known = Kind(kind)
    except (ValueError, RecursionError):
        raise DecodeError("The message is malformed: its kind or its facts are not known.") from None
    if not isinstance(facts, dict):
        raise DecodeError("The message is malformed: its facts have no names.")
    return Envelope(known, run.hex(), config.hex(), member, Clock(cloud, edge), weight, facts, tuple(parts))


def greeting_of(facts: dict[str, Any]) -> dict[str, Any]:
    """What a hello says of a member, from anybody; other facts are left out.

    These are the newest question it has (`seen`), for how long that is answered (`idle`), whether it leaves
    its work for a newer question (`yields`), and how an edge stands (`edge_round`, `members`).

    Raises:
        DecodeError: it is not of the form that a member gives it.
    """
    seen, idle = facts.get("seen"), facts.get("idle")
    edge_round, members = facts.get("edge_round"), facts.get("members", {})
    good = (
        (seen is None or (isinstance(seen, list) and len(seen) == 4 and isinstance(seen[0], str)))
        and all(_whole(number) for number in (seen or ())[1:])
        and (idle is None or _number(idle))
        and isinstance(facts.get("yields", False), bool)
        and (edge_round is None or _whole(edge_round))
        and isinstance(members, dict)
        and all(isinstance(up, bool) for up in members.values())
    )
    if not good:
        raise DecodeError("The message is malformed: no hello says such things.")
    return {
        name: facts[name] for name in ("seen", "idle", "yields", "edge_round", "members") if name in facts
    }


def trouble_of(facts: dict[str, Any]) -> str | None:
    """Why a member has no answer, in its own words; None where it has one.

    Raises:
        DecodeError: these are no words.
    """
    trouble = facts.get("trouble")
    if trouble is not None and not isinstance(trouble, str):
        raise DecodeError("The message is malformed: its trouble is not said in words.")
    return trouble and trouble[:_SAID]


def check_books(facts: dict[str, Any]) -> None:
    """Refuse the books of another server where `Books.saved` cannot have made them.

    Raises:
        DecodeError: so it is.
    """
    if "books" not in facts:
        return
    books = facts["books"]
    good = (
        isinstance(books, dict) and books.keys() == {*WAYS, "missing"} and isinstance(books["missing"], dict)
    )
    good = good and all(_whole(turns) for turns in books["missing"].values())
    good = good and all(isinstance(books[way], list) and len(books[way]) == 3 for way in WAYS)
    columns = [column for way in WAYS for column in books[way]] if good else []
    good = good and all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns)
    if not (good and all(_whole(number) for column in columns for number in column)):
        raise DecodeError("The message is malformed: its books are none.")


def counts_of(facts: dict[str, Any]) -> dict[str, Any]:
    """How good models are, as a client counted it or an edge gathered it; other facts are left out.

    Raises:
        DecodeError: it is not of the form that these give it.
    """
    clients = facts.get("clients", {})
    if not (isinstance(clients, dict) and all(isinstance(each, dict) for each in clients.values())):
        raise DecodeError("The message is malformed: its clients have no counts.")
    gathered = {name: _own_counts(each) for name, each in clients.items()}
    return _own_counts(facts) | ({"clients": gathered} if "clients" in facts else {})


def _own_counts(facts: dict[str, Any]) -> dict[str, Any]:
    names = ("test", "validation", "train", "density")
    found: dict[str, Any] = {name: facts[name] for name in names if name in facts}
    for name, value in found.items():
        if name == "density":
            good = _number(value)
        else:
            good = isinstance(value, dict) and all(_tally(each) for each in value.values())
        if not good:
            raise DecodeError("The message is malformed: its counts are none.")
    return found


def _tally(value: Any) -> bool:
    """Whether this is right, rows and loss; the loss of a model that diverged may be infinite."""
    if not (isinstance(value, list) and len(value) == 3):
        return False
    right, rows, loss = value
    return _whole(right) and _whole(rows) and right <= rows and (isinstance(loss, float) or _number(loss))


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST


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
        weights = decode(data, held, size, _WIDEST * size)
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
    pieces = [
        decode(part, held, len(model), _WIDEST * len(model))
        for part, held, model in zip(parts, (base, None), (like, tail), strict=False)
    ]
    if any(piece.dtype != like.dtype for piece in pieces):
        raise DecodeError(f"The message holds {pieces[0].dtype} where {like.dtype} is expected.")
    return torch.cat(pieces)

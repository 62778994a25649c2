"""The binary parts that secure aggregation adds to messages; their lengths follow from who takes part.

A round has four exchanges: every member offers keys and shares, uploads masked words, confirms to the others
who has uploaded, and reveals shares. Each part begins with the number of the attempt, which a server draws at
random.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sfedhp.core.types import Clock
from sfedhp.privacy.shares import SHARE_BYTES

ATTEMPT_BYTES: Final = 8
_KEY: Final = 32  # bytes of a public key, and of a commitment
SEALED_BYTES: Final = 2 * SHARE_BYTES + 16  # two shares, and the tag by which they are known to be whole
CONFIRMATION_BYTES: Final = 16
_SEAT: Final = struct.Struct("<I")
_TOTAL: Final = struct.Struct("<d")
_CHECKSUM: Final = struct.Struct("<I")
_RECORD: Final = _SEAT.size + 2 * _KEY + SEALED_BYTES
_CONFIRMED: Final = _SEAT.size + CONFIRMATION_BYTES


class AttemptError(ValueError):
    """A part of another attempt; the right one may still come."""


class PeerError(ValueError):
    """The offers of some members cannot be used; names their seats."""

    def __init__(self, seats: list[int]):
        super().__init__(f"the offers of seats {', '.join(map(str, seats))} cannot be used")
        self.seats = seats


class Offer(NamedTuple):
    """A member's offer for one round: its key, a commitment to its own mask, and shares of both."""

    public: bytes
    commitment: bytes
    sealed: Mapping[int, bytes]  # the two shares of each other member, by seat, which only that one can read


class Record(NamedTuple):
    """The part of a member's offer that another member receives."""

    public: bytes
    commitment: bytes
    sealed: bytes


class Roster(NamedTuple):
    """The members with which a member shares masks, and their offers."""

    total: float  # what all of them weigh, with the member itself
    records: Mapping[int, Record]  # of the others, by seat


class Lengths(NamedTuple):
    """Bytes of the parts of a round, by what they are; whole numbers, or tensors of them."""

    invitation: Any  # down
    offer: Any  # up
    roster: Any  # down
    masked: int  # uploaded in addition to the words
    survivors: Any  # down
    confirmed: Any  # up
    confirmations: Any  # down
    revealed: Any  # up


def lengths(invited: Any, answered: Any) -> Lengths:
    """The lengths of all parts, if all invited members made offers.

    Args:
        invited: members.
        answered: of them, how many uploaded.
    """
    return Lengths(
        ATTEMPT_BYTES + _SEAT.size * invited,
        ATTEMPT_BYTES + 2 * _KEY + SEALED_BYTES * (invited - 1),
        ATTEMPT_BYTES + _TOTAL.size + _RECORD * (invited - 1),
        ATTEMPT_BYTES + _CHECKSUM.size,
        ATTEMPT_BYTES + _SEAT.size * answered,
        ATTEMPT_BYTES + CONFIRMATION_BYTES * (answered - 1),
        ATTEMPT_BYTES + _CONFIRMED * (answered - 1),
        ATTEMPT_BYTES + SHARE_BYTES * invited,
    )


def context_of(run: str, clock: Clock, attempt: bytes) -> bytes:
    """The context of an attempt, which makes its secrets different from those of all others."""
    rounds = struct.pack("<II", int(clock.cloud_round), clock.edge_round)
    return b"sfedhp secure 1" + bytes.fromhex(run) + rounds + attempt


def view_of(model: bytes, seats: Iterable[int], total: float) -> bytes:
    """A hash of what a server sends to members in a round; if it differs, their masks do not cancel.

    So a server cannot send one member a special model or weight, and observe the effect.

    Args:
        model: the part with the model.
        seats: of all who mask their uploads with each other.
        total: what they weigh.
    """
    others = b"".join(map(_SEAT.pack, sorted(seats))) + _TOTAL.pack(total)
    return hashlib.sha256(hashlib.sha256(model).digest() + others).digest()


def encode_seats(attempt: bytes, seats: Iterable[int]) -> bytes:
    """Encode a list of seats: of the invited members, or of those that replied."""
    return attempt + b"".join(map(_SEAT.pack, sorted(seats)))


def decode_seats(part: bytes) -> tuple[bytes, list[int]]:
    """The attempt, and the seats.

    Raises:
        ValueError: it is not a list of different seats in their order.
    """
    attempt, rest = _split(part)
    if len(rest) % _SEAT.size:
        raise ValueError("a list of seats is cut off")
    seats = [seat for (seat,) in _SEAT.iter_unpack(rest)]
    if seats != sorted(set(seats)):
        raise ValueError("a list of seats is not in order")
    return attempt, seats


def encode_offer(attempt: bytes, offer: Offer) -> bytes:
    """A member's offer as bytes, with what it sealed for the others by their seats."""
    return b"".join((attempt, offer.public, offer.commitment, _joined(offer.sealed)))


def decode_offer(part: bytes, attempt: bytes, others: Sequence[int]) -> Offer:
    """The offer of a member.

    Args:
        part: untrusted bytes.
        attempt: that it has to be of.
        others: the seats of those it has shares for, in their order.

    Raises:
        ValueError: it is not one of these.
    """
    rest = _of_attempt(part, attempt)
    if len(rest) != 2 * _KEY + SEALED_BYTES * len(others):
        raise ValueError("an offer does not have a share for each member")
    places = (2 * _KEY + SEALED_BYTES * place for place in range(len(others)))
    sealed = {seat: rest[at : at + SEALED_BYTES] for seat, at in zip(others, places, strict=True)}
    return Offer(rest[:_KEY], rest[_KEY : 2 * _KEY], sealed)


def encode_roster(attempt: bytes, roster: Roster) -> bytes:
    """The roster for one member."""
    records = (_SEAT.pack(seat) + b"".join(roster.records[seat]) for seat in sorted(roster.records))
    return b"".join((attempt, _TOTAL.pack(roster.total), *records))


def decode_roster(part: bytes) -> tuple[bytes, Roster]:
    """The attempt, and the roster.

    Raises:
        ValueError: it is not one.
    """
    attempt, rest = _split(part)
    records = rest[_TOTAL.size :]
    if len(rest) < _TOTAL.size or len(records) % _RECORD:
        raise ValueError("a roster is cut off")
    found: dict[int, Record] = {}
    for at in range(0, len(records), _RECORD):
        (seat,) = _SEAT.unpack_from(records, at)
        first = at + _SEAT.size
        cuts = (first, first + _KEY, first + 2 * _KEY, at + _RECORD)
        found[seat] = Record(*(records[one:other] for one, other in pairwise(cuts)))
    if len(found) != len(records) // _RECORD:
        raise ValueError("a roster names a member twice")
    (total,) = _TOTAL.unpack_from(rest)
    return attempt, Roster(total, found)


def encode_masked(attempt: bytes, words: bytes) -> bytes:
    """A masked upload as bytes, with a checksum."""
    return b"".join((attempt, words, _CHECKSUM.pack(zlib.crc32(words, zlib.crc32(attempt)))))


def decode_masked(part: bytes, attempt: bytes, length: int) -> bytes:
    """The words of a masked upload.

    Raises:
        ValueError: it is not one of this attempt and length, or damaged.
    """
    rest = _of_attempt(part, attempt)
    words, checksum = rest[: -_CHECKSUM.size], rest[-_CHECKSUM.size :]
    if len(words) != length or len(checksum) < _CHECKSUM.size:
        raise ValueError(f"a masked upload has {len(words)} bytes of words, and {length} are expected")
    if _CHECKSUM.unpack(checksum)[0] != zlib.crc32(words, zlib.crc32(attempt)):
        raise ValueError("a masked upload is damaged: its checksum is wrong")
    return words


def encode_confirmed(attempt: bytes, confirmations: Mapping[int, bytes]) -> bytes:
    """What a member confirms to each other one that has uploaded."""
    return attempt + _joined(confirmations)


def decode_confirmed(part: bytes, attempt: bytes, others: Sequence[int]) -> dict[int, bytes]:
    """The confirmations of a member, by the seats of the members that they are for.

    Raises:
        ValueError: they are not of this attempt, or not one for each.
    """
    return _by_seat(_of_attempt(part, attempt), others, CONFIRMATION_BYTES, "a confirmation for")


def encode_confirmations(attempt: bytes, confirmations: Mapping[int, bytes]) -> bytes:
    """What others confirm to one member, by their seats."""
    return attempt + b"".join(_SEAT.pack(seat) + confirmations[seat] for seat in sorted(confirmations))


def decode_confirmations(part: bytes) -> tuple[bytes, dict[int, bytes]]:
    """The attempt, and what others confirm, by their seats.

    Raises:
        ValueError: it is no list of confirmations.
    """
    attempt, rest = _split(part)
    if len(rest) % _CONFIRMED:
        raise ValueError("a list of confirmations is cut off")
    found = {}
    for at in range(0, len(rest), _CONFIRMED):
        (seat,) = _SEAT.unpack_from(rest, at)
        found[seat] = rest[at + _SEAT.size : at + _CONFIRMED]
    return attempt, found


def encode_revealed(attempt: bytes, shares: Mapping[int, bytes]) -> bytes:
    """Encode the shares that a member reveals, one for each member of the roster and for itself."""
    return attempt + _joined(shares)


def decode_revealed(part: bytes, attempt: bytes, seats: Sequence[int]) -> dict[int, bytes]:
    """The shares by seat.

    Raises:
        ValueError: they are not of this attempt, or not one of each.
    """
    return _by_seat(_of_attempt(part, attempt), seats, SHARE_BYTES, "a share of")


def _joined(pieces: Mapping[int, bytes]) -> bytes:
    """Pieces one after another, in the order of their seats."""
    return b"".join(pieces[seat] for seat in sorted(pieces))


def _by_seat(data: bytes, seats: Sequence[int], size: int, what: str) -> dict[int, bytes]:
    """What `_joined` made of pieces of one size, which must be one for each seat."""
    if len(data) != size * len(seats):
        raise ValueError(f"there is not {what} each member")
    return {seat: data[size * at : size * (at + 1)] for at, seat in enumerate(seats)}


def _split(part: bytes) -> tuple[bytes, bytes]:
    if len(part) < ATTEMPT_BYTES:
        raise ValueError("a part of secure aggregation is cut off")
    return part[:ATTEMPT_BYTES], part[ATTEMPT_BYTES:]


def _of_attempt(part: bytes, attempt: bytes) -> bytes:
    found, rest = _split(part)
    if found != attempt:
        raise AttemptError("it belongs to another attempt")
    return rest

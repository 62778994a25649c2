"""The cards of a server's members, with their keys for secure aggregation, and who has received which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sfedhp.deploy.messaging.member import Member


class _Card(NamedTuple):
    """A member's card as bytes, with the id of its key."""

    key_id: str  # of its key, as its heartbeats name it
    data: bytes


class MemberCards:
    """The cards that a server forwards, so that each member can encrypt shares for the others."""

    def __init__(self, members: Sequence[Member]):
        self._members = members  # by seat
        self._cards: dict[int, _Card] = {}
        self._known: dict[int, dict[int, str]] = {}  # by seat: the seats whose keys it has received

    def clear(self) -> None:
        """Forget all cards, and who has received them."""
        self._cards.clear()
        self._known.clear()

    def keep(self, seat: int, public: bytes, data: bytes) -> None:
        """Keep a member's card; it has no keys of others yet."""
        self._cards[seat] = _Card(public.hex()[:16], data)
        self._known[seat] = {}

    def current(self, seat: int) -> bool:
        """Whether the card of a member is known, and has the key that its heartbeats name."""
        hello, card = self._members[seat].hello, self._cards.get(seat)
        return card is not None and (hello is None or hello.get("key") in (None, card.key_id))

    def missing(self, invited: Iterable[int]) -> dict[int, list[int]]:
        """The cards that each invited member still needs, by seat."""
        seats = list(invited)
        return {
            seat: [
                other
                for other in seats
                if other != seat and self._known[seat].get(other) != self._cards[other].key_id
            ]
            for seat in seats
        }

    def data(self, seats: Iterable[int]) -> tuple[bytes, ...]:
        """The cards of some members, as bytes."""
        return tuple(self._cards[seat].data for seat in seats)

    def names(self, seats: Iterable[int]) -> list[list[Any]]:
        """Seats and names of members, as metadata."""
        return [[seat, self._members[seat].name] for seat in seats]

    def given(self, seat: int, others: Iterable[int]) -> None:
        """Note that a member has received the cards of others."""
        self._known[seat] |= {other: self._cards[other].key_id for other in others}

    def lost(self, seat: int) -> None:
        """Note that a member may have lost the cards of others."""
        self._known[seat] = {}

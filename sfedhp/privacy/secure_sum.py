"""The server's side of secure aggregation: it forwards offers, adds masked words, and removes the masks."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from functools import partial

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sfedhp.core.types import Clock
from sfedhp.privacy import masks
from sfedhp.privacy.ring import MaskedFormat, Words
from sfedhp.privacy.secure_member import pair_context
from sfedhp.privacy.secure_messages import (
    ATTEMPT_BYTES,
    Offer,
    Record,
    Roster,
    context_of,
    decode_confirmed,
    decode_masked,
    decode_offer,
    decode_revealed,
    encode_confirmations,
    encode_roster,
    encode_seats,
    view_of,
)
from sfedhp.privacy.shares import combine_checked


class SecureSum:
    """One attempt at the sum of a round."""

    def __init__(self, run: str, clock: Clock, model: bytes, invited: Collection[int], threshold: int):
        """Draw the number of the attempt.

        Args:
            run: its id, 16 hexadecimal digits.
            clock: of the round.
            model: the part with the model, the same for all.
            invited: seats.
            threshold: how many shares give a secret, as `least_members` says.
        """
        self.attempt = secrets.token_bytes(ATTEMPT_BYTES)
        self.invited, self.threshold = sorted(invited), threshold
        self.offers: dict[int, Offer] = {}
        self.total = 0.0  # what all weigh that made an offer
        self.answered: list[int] = []
        self._context, self._model = context_of(run, clock, self.attempt), model
        self._sum: tuple[Words, Words] | None = None
        self.unsound: set[int] = set()  # seats whose shares give no secret, although those of others do

    def invitation(self) -> bytes:
        """The part that asks for offers."""
        return encode_seats(self.attempt, self.invited)

    def read_offer(self, seat: int, part: bytes) -> Offer:
        """The offer of a member.

        Raises:
            ValueError: it cannot be used.
        """
        return decode_offer(part, self.attempt, [other for other in self.invited if other != seat])

    def roster(self, seat: int) -> bytes:
        """The part that tells a member whom to mask with."""
        records = {
            other: Record(offer.public, offer.commitment, offer.sealed[seat])
            for other, offer in self.offers.items()
            if other != seat
        }
        return encode_roster(self.attempt, Roster(self.total, records))

    def read_masked(self, part: bytes, form: MaskedFormat) -> tuple[Words, Words]:
        """The words of a masked upload.

        Raises:
            ValueError: it cannot be used.
        """
        return form.unpack(decode_masked(part, self.attempt, form.length))

    def add(self, uploads: Mapping[int, tuple[Words, Words]]) -> None:
        """Add the masked uploads, by seat; their senders are the members that replied."""
        self.answered = sorted(uploads)
        for words in uploads.values():
            if self._sum is None:
                self._sum = (words[0].copy(), words[1].copy())
            else:
                masks.add(self._sum, words)

    def survivors(self) -> bytes:
        """The part that lists who has uploaded, and asks members to confirm it."""
        return encode_seats(self.attempt, self.answered)

    def read_confirmed(self, seat: int, part: bytes) -> dict[int, bytes]:
        """The confirmations of a member, by the seat of their receiver.

        Raises:
            ValueError: it cannot be used.
        """
        return decode_confirmed(part, self.attempt, [other for other in self.answered if other != seat])

    def confirmations(self, seat: int, confirmed: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """The part that asks a member for shares.

        Args:
            seat: the member's.
            confirmed: what each confirms, by who does and whom it is for.
        """
        found = {other: theirs[seat] for other, theirs in confirmed.items() if other != seat}
        return encode_confirmations(self.attempt, found)

    def read_revealed(self, part: bytes) -> dict[int, bytes]:
        """The shares that a member reveals, by the seat of their owner.

        Raises:
            ValueError: they cannot be used.
        """
        return decode_revealed(part, self.attempt, sorted(self.offers))

    def unmasked(
        self, revealed: Mapping[int, Mapping[int, bytes]], form: MaskedFormat
    ) -> tuple[Words, Words] | None:
        """The sum without masks; None if the shares do not give what is needed, and `unsound` says whose.

        Args:
            revealed: the shares that each member revealed, by its seat.
            form: of the words.
        """
        assert self._sum is not None, "no upload was added"
        total = (self._sum[0].copy(), self._sum[1].copy())
        for seat, offer in self.offers.items():
            answered = seat in self.answered
            shares = {other + 1: theirs[seat] for other, theirs in revealed.items()}
            is_right = partial(_is_own if answered else _is_pair, offer)
            secret = combine_checked(shares, self.threshold, is_right)
            if secret is None:
                self.unsound.add(seat)
            elif answered:
                masks.add(total, masks.mask(secret, form), -1)
            else:
                self._remove_pairs(total, seat, secret, form)
        failed = bool(self.unsound)
        if len(self.unsound) == len(self.offers) or len(revealed) <= self.threshold:
            self.unsound.clear()  # too few sent their shares, or one of them may be false
        return None if failed else total

    def _remove_pairs(self, total: tuple[Words, Words], seat: int, secret: bytes, form: MaskedFormat) -> None:
        """Remove the masks that a lost member has in common with those that answered."""
        view = view_of(self._model, self.offers, self.total)
        for other in self.answered:
            context = pair_context(self._context, view, seat, other)
            seed = masks.derive(_key(secret), self.offers[other].public, context)
            # The member that answered added this mask if its seat is the lower one.
            masks.add(total, masks.mask(seed, form), -1 if other < seat else 1)


def _is_own(offer: Offer, secret: bytes) -> bool:
    return masks.commitment(secret) == offer.commitment


def _is_pair(offer: Offer, secret: bytes) -> bool:
    return masks.public_bytes(_key(secret)) == offer.public


def _key(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(secret)

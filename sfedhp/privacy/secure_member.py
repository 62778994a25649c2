"""The member's side of secure aggregation: what it sends in one attempt at a round.

Practical Secure Aggregation for Privacy-Preserving Machine Learning.
K. Bonawitz et al. CCS 2017. https://doi.org/10.1145/3133956.3133982

Two kinds of masks hide an upload. One mask is shared with each other member, and cancels in the sum. The
other is the member's own: it keeps a late upload hidden, even if the server has rebuilt the shared masks.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sfedhp.privacy import masks
from sfedhp.privacy.ring import MaskedFormat, Words
from sfedhp.privacy.secure_messages import (
    CONFIRMATION_BYTES,
    Offer,
    PeerError,
    Roster,
    decode_confirmations,
    decode_roster,
    decode_seats,
    encode_confirmed,
    encode_masked,
    encode_offer,
    encode_revealed,
    encode_seats,
    view_of,
)
from sfedhp.privacy.shares import SECRET_BYTES, SHARE_BYTES, split

FEWEST: Final = 2  # members of a sum


def least_members(threshold: int, members: int) -> int:
    """How many members a sum has at least, and how many shares give a secret.

    Args:
        threshold: as the federation file says; 0: a majority.
        members: of their server.
    """
    return max(threshold or members // 2 + 1, FEWEST)


class SecureMember:
    """One attempt of one member. Its secrets are only in memory, and are used once."""

    def __init__(
        self,
        context: bytes,
        attempt: bytes,
        seat: int,
        channel: X25519PrivateKey,
        peers: Mapping[int, bytes],
        threshold: int,
    ):
        """Draw the secrets.

        Args:
            context: of `context_of`.
            attempt: its number.
            seat: the member's.
            channel: the key whose public half it has registered.
            peers: the public keys that the others have registered, by seat.
            threshold: `least_members` of all who are invited.
        """
        self.attempt, self.threshold = attempt, threshold
        self._context, self._seat, self._channel, self._peers = context, seat, channel, dict(peers)
        self._pair, self._own = masks.new_key(), secrets.token_bytes(SECRET_BYTES)
        self._public, self._commitment = masks.public_bytes(self._pair), masks.commitment(self._own)
        places = [peer + 1 for peer in (seat, *self._peers)]
        self._shares = tuple(
            split(secret, places, threshold) for secret in (self._pair.private_bytes_raw(), self._own)
        )
        self._held: dict[int, tuple[bytes, bytes]] = {}  # shares of the pair key and of the own mask, by seat
        self._masked: tuple[bytes, bytes] | None = None  # the roster, and what was sent
        self._confirmed: list[int] | None = None  # who has uploaded, as confirmed to the others

    def offer(self) -> bytes:
        """The part with the member's key, and for every other member a sealed share of each secret.

        Raises:
            PeerError: a registered key cannot be one.
        """
        sealed, wrong = {}, []
        for peer, public in self._peers.items():
            try:
                context = _seal_context(self._context, self._seat, peer, self._public)
                key = masks.derive(self._channel, public, context)
            except ValueError:
                wrong.append(peer)
                continue
            text = b"".join(shares[peer + 1] for shares in self._shares)
            sealed[peer] = masks.seal(key, text, self._public + self._commitment)
        if wrong:
            raise PeerError(wrong)
        return encode_offer(self.attempt, Offer(self._public, self._commitment, sealed))

    def masked(
        self, model: bytes, part: bytes, words: Callable[[Roster], tuple[MaskedFormat, tuple[Words, Words]]]
    ) -> bytes:
        """The part with the masked upload. The same request gives the same, and another one nothing.

        Args:
            model: the part with the model that it was sent.
            part: with the roster.
            words: gives the upload's words for a roster, and their format.

        Raises:
            PeerError: a share cannot be opened, or a key cannot be one.
            ValueError: the roster cannot be used.
        """
        if self._masked is not None and self._masked[0] == model + part:
            return self._masked[1]
        attempt, roster = decode_roster(part)
        if attempt != self.attempt or self._masked is not None:
            raise ValueError("a roster is of another attempt, or a second one")
        if len(roster.records) + 1 < self.threshold or not roster.records.keys() <= self._peers.keys():
            raise ValueError(f"a sum needs {self.threshold} members that were invited")
        seeds = self._open(roster, view_of(model, (self._seat, *roster.records), roster.total))
        form, total = words(roster)
        masks.add(total, masks.mask(self._own, form))
        for peer, seed in seeds.items():
            masks.add(total, masks.mask(seed, form), 1 if self._seat < peer else -1)
        self._masked = (model + part, encode_masked(self.attempt, form.pack(total)))
        return self._masked[1]

    def confirm(self, part: bytes) -> bytes:
        """The part that confirms to each other member who has uploaded; only one list per attempt.

        Args:
            part: the seats of those who answered.

        Raises:
            ValueError: the list cannot be used.
        """
        attempt, answered = decode_seats(part)
        if attempt != self.attempt or self._masked is None:
            raise ValueError("there is no upload of this attempt")
        if self._confirmed not in (None, answered):
            raise ValueError("other members were confirmed already")
        if len(answered) < self.threshold or not {self._seat} <= set(answered) <= {self._seat, *self._held}:
            raise ValueError(f"a sum needs {self.threshold} members of the roster, and this one")
        self._confirmed = answered
        others = [peer for peer in answered if peer != self._seat]
        found = {peer: self._confirmation(self._seat, peer, peer, answered) for peer in others}
        return encode_confirmed(self.attempt, found)

    def reveal(self, part: bytes) -> bytes:
        """The part with shares: of its own mask of each member that answered, of the pair key of the others.

        Never both of one member, and only if enough members for a sum have confirmed the same list: a server
        that sends different lists to members could rebuild secrets for sums of few members.

        Args:
            part: what others confirm.

        Raises:
            ValueError: it is not enough.
        """
        attempt, confirmations = decode_confirmations(part)
        if attempt != self.attempt or self._confirmed is None:
            raise ValueError("no list of this attempt was confirmed")
        answered = self._confirmed
        agree = {self._seat} | {
            peer
            for peer in answered
            if peer in confirmations
            and hmac.compare_digest(confirmations[peer], self._confirmation(peer, self._seat, peer, answered))
        }
        if len(agree) < self.threshold:
            raise ValueError(f"{len(agree)} members confirm who has uploaded, and {self.threshold} have to")
        pair, own = (shares[self._seat + 1] for shares in self._shares)
        held = {**self._held, self._seat: (pair, own)}
        return encode_revealed(self.attempt, {seat: both[seat in answered] for seat, both in held.items()})

    def _confirmation(self, sender: int, receiver: int, peer: int, answered: Sequence[int]) -> bytes:
        """What a sender confirms to a receiver: this member is the one, and `peer` the other."""
        context = _between(self._context, b"confirm", sender, receiver)
        key = masks.derive(self._channel, self._peers[peer], context)
        return hmac.digest(key, encode_seats(self.attempt, answered), "sha256")[:CONFIRMATION_BYTES]

    def _open(self, roster: Roster, view: bytes) -> dict[int, bytes]:
        """Open the shares of the others, and return the seeds of the masks with them."""
        seeds, wrong = {}, []
        self._held.clear()
        for peer, record in roster.records.items():
            context = _seal_context(self._context, peer, self._seat, record.public)
            try:
                key = masks.derive(self._channel, self._peers[peer], context)
                text = masks.unseal(key, record.sealed, record.public + record.commitment)
                seeds[peer] = masks.derive(
                    self._pair, record.public, pair_context(self._context, view, self._seat, peer)
                )
            except ValueError:
                wrong.append(peer)
                continue
            self._held[peer] = (text[:SHARE_BYTES], text[SHARE_BYTES:])
        if wrong:
            raise PeerError(wrong)
        return seeds


def pair_context(context: bytes, view: bytes, one: int, other: int) -> bytes:
    """The context of the mask of two members, which both have to be told the same, as `view_of` says."""
    return _between(context, b"mask" + view, *sorted((one, other)))


def _seal_context(context: bytes, sender: int, receiver: int, public: bytes) -> bytes:
    """The context of sealed shares, with the sender's key: a server may ask twice with one number."""
    return _between(context, b"seal" + public, sender, receiver)


def _between(context: bytes, purpose: bytes, one: int, other: int) -> bytes:
    return context + purpose + one.to_bytes(4, "little") + other.to_bytes(4, "little")

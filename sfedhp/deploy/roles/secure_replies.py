"""A client's part in secure aggregation: its key, what it offers each round, and its masked uploads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.identity import CardReader, Identity
from sfedhp.deploy.messaging.protocol import Envelope, Kind
from sfedhp.deploy.messaging.shape import count, list_of, text, tuple_of
from sfedhp.deploy.site import Site
from sfedhp.engine.roles import Reply
from sfedhp.privacy import masks
from sfedhp.privacy.ring import MaskedFormat, Words
from sfedhp.privacy.secure_member import SecureMember, least_members
from sfedhp.privacy.secure_messages import PeerError, Roster, context_of, decode_seats
from sfedhp.runs.method_options import clients_of_server, largest_sum, secure_options
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of

_CLIENT: Final = re.compile(r"client-[0-9]+-[0-9]+")  # a server may be called client-server
_NAMED: Final = list_of(tuple_of(count, text))  # seats with names


class _Peer(NamedTuple):
    """Another client of the server."""

    name: str
    public: bytes  # its key


class SecureReplies:
    """A client's masked replies. Its secrets are only in memory: a restart costs a round."""

    def __init__(self, site: Site, kit: Path, size: int, statistics: int, log: EventLog):
        """Read the certificate, and draw a key.

        Args:
            site: the client's.
            kit: its folder.
            size: d.
            statistics: s.
            log: the client's.

        Raises:
            InputError: the kit has no certificate.
        """
        options, experiment = secure_options(site.experiment), site.experiment
        assert options is not None, "secure is on"
        self._site, self._sizes, self._options = site, (size, statistics), options
        self._log = log
        self._cards = CardReader.of(kit, site.config)
        self._channel = masks.new_key()
        public = masks.public_bytes(self._channel)
        self.key_id = public.hex()[:16]  # by which heartbeats name the key
        self._card = Identity.read(kit).card(public, site.config)
        up = Direction.from_client(experiment.algorithm.tiers)
        self._link = link_of(experiment.wire, up)
        self._least = site.limits.secure_threshold
        self._clients = clients_of_server(experiment, site.edge)
        self._peers: dict[int, _Peer] = {}  # by seat
        self._member: SecureMember | None = None
        # What the member's secrets are of, and its offer.
        self._offered: tuple[str, Clock, bytes] | None = None
        self._confirmed: dict[tuple[str, Clock], list[int]] = {}  # in each round, who has uploaded

    def reply_to(self, request: Envelope) -> dict[str, Any]:
        """The content of the reply to a request for keys, offers, confirmations or shares.

        Raises:
            PeerError: others sent what cannot be used.
            InputError: it cannot be answered.
        """
        if request.kind is Kind.KEY:
            return {"parts": (self._card,)}
        answers = {Kind.OFFER: self._offer, Kind.CONFIRM: self._confirm, Kind.UNMASK: self._shares}
        with _refusing():
            return {"parts": (answers[request.kind](request),)}

    def masked(self, request: Envelope, reply: Reply, received: Tensor) -> tuple[bytes, ...]:
        """The parts of a masked upload.

        Args:
            request: with the roster behind the model.
            reply: of the client.
            received: (d,), the model that it was sent.

        Raises:
            PeerError: others sent what cannot be used.
            InputError: the client has no secrets of this attempt, or the roster cannot be used.
        """
        size, statistics = self._sizes

        def words(roster: Roster) -> tuple[MaskedFormat, tuple[Words, Words]]:
            members = max(largest_sum(self._site.experiment), len(roster.records) + 1)
            form = MaskedFormat(self._options, members, size, statistics)
            sent = self._link.zeroed(reply.upload, size)
            if not bool(sent.isfinite().all()):
                raise ValueError("its model is not finite")
            if not roster.total >= reply.weight > 0:
                raise ValueError("a roster weighs less than this client")
            change = sent[:size] - received
            if share := float((change.abs() > self._options.bound).double().mean()):
                self._log.write("cut", share=share)  # of the weights, whose change was more than the bound
            return form, form.encode(change, sent[size:], reply.weight / roster.total)

        with _refusing():
            if len(request.parts) != 2 or not self._is_of(request):
                raise ValueError("this client has no secrets of this round; the next round has new ones")
            assert self._member is not None
            model, roster = request.parts
            return (self._member.masked(model, roster, words),)

    def _offer(self, request: Envelope) -> bytes:
        """Secrets for a round, drawn once for each attempt; the cards of others are checked first."""
        if not request.parts:
            raise ValueError("an invitation has no part")
        attempt, seats = decode_seats(request.parts[0])
        if self._is_of(request) and self._member is not None and self._member.attempt == attempt:
            assert self._offered is not None
            return self._offered[2]
        self._read_cards(request.metadata.get("cards", []), request.parts[1:])
        own, threshold = self._site.seat, least_members(self._least, max(self._clients, len(seats)))
        if own not in seats or len(seats) < threshold:
            raise ValueError(f"a sum needs {threshold} clients, and this one")
        peers = {seat: self._peers[seat].public for seat in seats if seat in self._peers and seat != own}
        if len(peers) + 1 < len(seats) or len({self._peers[seat].name for seat in peers}) < len(peers):
            raise ValueError("the cards of other clients have not arrived")
        context = context_of(request.run, request.clock, attempt)
        self._member = SecureMember(context, attempt, own, self._channel, peers, threshold)
        self._offered = (request.run, request.clock, self._member.offer())
        return self._offered[2]

    def _confirm(self, request: Envelope) -> bytes:
        """Confirm who has uploaded: only one list in a round, for all its attempts."""
        member = self._member_of(request)
        _, answered = decode_seats(request.parts[0])
        if self._confirmed.get((request.run, request.clock), answered) != answered:
            raise ValueError("another list of clients was confirmed in this round already")
        confirmed = member.confirm(request.parts[0])
        self._confirmed[request.run, request.clock] = answered
        return confirmed

    def _shares(self, request: Envelope) -> bytes:
        """Shares for the sum of those who are confirmed to have uploaded."""
        return self._member_of(request).reveal(request.parts[0])

    def _member_of(self, request: Envelope) -> SecureMember:
        """The secrets of the round of a request, which has one part."""
        if len(request.parts) != 1 or not self._is_of(request):
            raise ValueError("this client has no secrets of this round")
        assert self._member is not None
        return self._member

    def _is_of(self, request: Envelope) -> bool:
        """Whether the secrets are of the round of a request."""
        return self._offered is not None and self._offered[:2] == (request.run, request.clock)

    def _read_cards(self, members: Any, cards: Sequence[bytes]) -> None:
        """Check the cards of other clients.

        Args:
            members: the seat and the name of each.
            cards: as they come.

        Raises:
            PeerError: some are not those of other clients of this server.
            ValueError: there is not a card for each.
        """
        if not _NAMED(members) or len(members) != len(cards):
            raise ValueError("the cards of other clients do not match their list")
        wrong = []
        for (seat, name), card in zip(members, cards, strict=True):
            try:
                if name == self._site.name or not _CLIENT.fullmatch(name):
                    raise ValueError(f"{name} is not another client")
                self._peers[seat] = _Peer(name, self._cards.public_key(card, name))
            except ValueError:
                wrong.append(seat)
        if wrong:
            raise PeerError(wrong)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn errors in a server's message into the error that a role replies with."""
    try:
        yield
    except PeerError:
        raise
    except ValueError as error:
        raise InputError(f"Secure aggregation: {error}.") from None

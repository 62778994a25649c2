"""Server side of secure aggregation: requests keys, offers, masked uploads, confirmations and shares.

If a member is lost at any stage, it is left out, and the others reveal their shares of its masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.types import Clock
from sfedhp.deploy.identity import CardReader
from sfedhp.deploy.messaging.gather import MemberGroup
from sfedhp.deploy.messaging.member_cards import MemberCards
from sfedhp.deploy.messaging.metadata import accused_of
from sfedhp.deploy.messaging.payload import pack_rows
from sfedhp.deploy.messaging.protocol import START, Envelope, Kind
from sfedhp.deploy.messaging.request import (
    AllMembersFailedError,
    RefusedError,
    Request,
    UnexpectedReplyError,
)
from sfedhp.engine.roles import Reply
from sfedhp.privacy.ring import MaskedFormat, SecureOptions, Words
from sfedhp.privacy.secure_member import least_members
from sfedhp.privacy.secure_messages import AttemptError
from sfedhp.privacy.secure_sum import SecureSum

_ATTEMPTS: Final = 3  # per round, if offers are invalid or too few clients reply


class _Upload(NamedTuple):
    """A member's masked upload, and its weight."""

    words: tuple[Words, Words]
    weight: float


class _Sent(NamedTuple):
    """The content of a round's requests to the members."""

    clock: Clock
    parts: Mapping[int, tuple[bytes, ...]]  # the model, by seat
    held: Tensor  # (d,), as all of them decode it


@dataclass
class SecureGroup(MemberGroup):
    """The members of a server that learns only sums."""

    secure: SecureOptions = field(kw_only=True)
    seats: int = field(kw_only=True)  # clients of the largest server
    clients: int = field(kw_only=True)  # of this one
    threshold: int = field(kw_only=True)  # of the federation file
    cards: CardReader = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cards = MemberCards(self.members)
        self._accused: dict[int, set[int]] = {}  # in an attempt: by seat, the seats whose offers it rejected
        self._unsound: set[int] = set()  # seats that sent invalid shares; they are not invited again
        self._least = least_members(self.threshold, self.clients)

    def request(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Reply | None]:
        """Request a training step; every member that replied gets the mean of all as its upload."""
        seats = [seat for seat in range(len(self)) if asked is None or bool(asked[seat])]
        rows = messages if asked is None else messages[seats]
        packed = pack_rows(rows, len(self.model), self.link)
        parts = {seat: pieces for seat, (pieces, _) in zip(seats, packed, strict=True)}
        sent = _Sent(clock, parts, packed[0][1][: len(self.model)])
        replies: dict[int, Reply] = {}
        left_out: set[int] = set()
        for _ in range(_ATTEMPTS):
            self._accused.clear()
            found = self._attempt(sent, [seat for seat in seats if seat not in left_out])
            if found is not None:
                replies = found
                break
            left_out |= self._to_leave_out()
        else:
            self._give_up(sent, f"too few clients in {_ATTEMPTS} attempts")
        return self._in_order(replies, seats)

    def forget(self) -> None:
        """Forget the members' heartbeats, as `MemberExchange` does, and their cards."""
        super().forget()
        self._cards.clear()

    def _attempt(self, sent: _Sent, seats: Sequence[int]) -> dict[int, Reply] | None:
        """The replies by seat; empty if the round gives no sum, None if another attempt is needed."""
        self._register(seats)
        invited = [seat for seat in seats if self._cards.current(seat) and seat not in self._unsound]
        least = least_members(self.threshold, max(self.clients, len(invited)))
        if len(invited) < least:
            return self._give_up(sent, f"{len(invited)} clients have keys")
        attempt = SecureSum(self.run, sent.clock, sent.parts[invited[0]][0], invited, least)
        attempt.offers = self._offers(attempt, sent.clock)
        if self._accused or len(attempt.offers) < least:
            return None
        form = MaskedFormat(
            self.secure, max(self.seats, len(attempt.offers)), len(self.model), len(self.statistics)
        )
        attempt.total = sum(self._weight(seat) for seat in attempt.offers)
        uploads = self._uploads(attempt, sent, form)
        if len(uploads) < max(least, self._needed(seats)):
            return None
        attempt.add({seat: upload.words for seat, upload in uploads.items()})
        words = attempt.unmasked(self._shares(attempt, sent.clock), form)
        if words is None:
            self._unsound |= attempt.unsound
            wrong = " and ".join(self.names[seat] for seat in sorted(attempt.unsound))
            few = "too few clients sent their shares"
            return self._give_up(sent, f"the shares of {wrong} are wrong" if wrong else few)
        weights = {seat: upload.weight for seat, upload in uploads.items()}
        change, statistics = form.decode(words, len(weights), sum(weights.values()) / attempt.total)
        mean = torch.cat([(sent.held.double() + change).to(sent.held.dtype), statistics.to(sent.held.dtype)])
        try:
            self.accept.upload(mean, sent.held)
        except RefusedError as error:
            return self._give_up(sent, f"of the mean of all clients: {error}")
        return {seat: Reply(mean, weight) for seat, weight in weights.items()}

    def _register(self, seats: Sequence[int]) -> None:
        """Request the missing keys; wait for as many as a sum needs."""
        new: dict[int, tuple[bytes, ...]] = {seat: () for seat in seats if not self._cards.current(seat)}
        if not new:
            return

        def read(seat: int, envelope: Envelope) -> tuple[bytes, bytes]:
            self._check_result(seat, envelope.metadata)
            if len(envelope.parts) != 1:
                raise RefusedError("it sends no key")
            card, name = envelope.parts[0], self.names[seat]
            public: bytes = _checked(lambda: self.cards.public_key(card, name))
            return public, card

        more = self._totals_for(new)
        request = Request.of_parts(Kind.KEY, self.run, self.config, START, new, read, more=more)
        known = len(seats) - len(new)
        found = self._wait(request, max(self._least - known, 0), self.timeout)
        for seat, (public, card) in found.items():
            self._cards.keep(seat, public, card)

    def _offers(self, attempt: SecureSum, clock: Clock) -> dict[int, Any]:
        """Request the members' offers, and send them the keys of others that they do not have."""
        missing = self._cards.missing(attempt.invited)
        parts = {seat: (attempt.invitation(), *self._cards.data(others)) for seat, others in missing.items()}
        totals = self._totals_for(parts)
        more = {
            seat: {"cards": self._cards.names(others), **totals.get(seat, {})}
            for seat, others in missing.items()
        }

        def read(seat: int, envelope: Envelope) -> Any:
            self._check_secure(seat, envelope)
            if not self.accept.equal_weights and self.members[seat].rows is None:
                raise RefusedError("it has not reported how many rows it has")
            if not self._cards.current(seat):
                raise RefusedError("its key is a new one, which others do not have yet")
            return _checked(lambda: attempt.read_offer(seat, envelope.parts[0]))

        request = Request.of_parts(Kind.OFFER, self.run, self.config, clock, parts, read, more=more)
        found = self._wait(request, self._needed(attempt.invited), self.timeout)
        for seat in attempt.invited:
            if seat in found:
                self._cards.given(seat, missing[seat])
            elif seat in request.failed:
                self._cards.lost(seat)
        return found

    def _uploads(self, attempt: SecureSum, sent: _Sent, form: MaskedFormat) -> dict[int, _Upload]:
        """Request the masked uploads of the members that made offers."""
        parts = {seat: (*sent.parts[seat], attempt.roster(seat)) for seat in attempt.offers}

        def read(seat: int, envelope: Envelope) -> _Upload:
            self._check_secure(seat, envelope)
            weight = self.accept.weight(self.members[seat], envelope.weight)
            words = _checked(lambda: attempt.read_masked(envelope.parts[0], form))
            self._pass_on(seat, envelope.metadata)
            self.traffic.add("up", seat, 0, 0, form.size)
            return _Upload(words, weight)

        nonzeros = dict.fromkeys(parts, int((sent.held != 0).sum()))
        more = self._totals_for(parts)
        request = Request.of_parts(
            Kind.WORK,
            *(self.run, self.config, sent.clock, parts, read),
            nonzeros=nonzeros,
            metadata=self.notice(),
            more=more,
        )
        try:
            return self._wait(request, 0, self.timeout)
        except AllMembersFailedError:
            if not self._accused:  # one bad offer must not end the run
                raise
            return {}

    def _shares(self, attempt: SecureSum, clock: Clock) -> dict[int, dict[int, bytes]]:
        """Request the shares of the members that replied, once they have confirmed to each other who did."""
        survivors = dict.fromkeys(attempt.answered, attempt.survivors())
        confirmed = self._few(attempt, clock, Kind.CONFIRM, survivors, attempt.read_confirmed)
        if len(confirmed) < attempt.threshold:
            return {}
        parts = {seat: attempt.confirmations(seat, confirmed) for seat in attempt.answered}
        return self._few(attempt, clock, Kind.UNMASK, parts, lambda _, part: attempt.read_revealed(part))

    def _few(
        self,
        attempt: SecureSum,
        clock: Clock,
        kind: Kind,
        parts: Mapping[int, bytes],
        reader: Callable[[int, bytes], dict[int, bytes]],
    ) -> dict[int, dict[int, bytes]]:
        """The replies to a small message, by seat; as many replies as rebuild a secret are enough."""

        def read(seat: int, envelope: Envelope) -> dict[int, bytes]:
            self._check_secure(seat, envelope)
            found: dict[int, bytes] = _checked(lambda: reader(seat, envelope.parts[0]))
            return found

        pieces = {seat: (part,) for seat, part in parts.items()}
        request = Request.of_parts(kind, self.run, self.config, clock, pieces, read)
        request.enough = attempt.threshold
        found: dict[int, dict[int, bytes]] = self._wait(request, 0, self.timeout)
        return found

    def _check_secure(self, seat: int, envelope: Envelope) -> None:
        """Check that a reply has one part and no error, and note whom it accuses."""
        if accused := set(accused_of(envelope.metadata)) - {seat}:
            self._accused[seat] = accused
        self._check_result(seat, envelope.metadata)
        if len(envelope.parts) != 1:
            raise RefusedError(f"it sends {len(envelope.parts)} parts, and one is expected")

    def _needed(self, seats: Sequence[int]) -> int:
        """How many of these have to reply."""
        return max(self._least, min(self.quorum, len(seats)))

    def _ends_early(self, request: Request) -> bool:
        """Also end early if an offer cannot be used, or a key is new: another attempt begins."""
        renewed = request.kind is Kind.OFFER and not all(map(self._cards.current, request.messages))
        return bool(self._accused) or renewed

    def _weight(self, seat: int) -> float:
        """The weight of a member: the rows that it reported first, or 1."""
        rows = self.members[seat].rows
        return 1.0 if self.accept.equal_weights or rows is None else float(rows[0])

    def _to_leave_out(self) -> set[int]:
        """The members to leave out of the next attempt: those accused by several, or by one and this accuser.

        It is not known which of the two is wrong. A member that sends others invalid data costs an attempt,
        not the round.
        """
        found: set[int] = set()
        for seat in set().union(*self._accused.values()):
            accusers = [other for other, accused in self._accused.items() if seat in accused]
            found |= {seat} if len(accusers) > 1 else {seat, *accusers}
        if found:
            self.log.write(
                "accused", members=[self.names[seat] for seat in sorted(found) if seat < len(self)]
            )
        return found

    def _give_up(self, sent: _Sent, reason: str) -> dict[int, Reply]:
        """End the round without a sum: no one learns anything, and the server keeps its state."""
        self.log.write(
            "no sum", round=sent.clock.cloud_round, edge_round=sent.clock.edge_round, reason=reason
        )
        return {}


def _checked(read: Callable[[], Any]) -> Any:
    """The result of a reader, whose errors become refusals of the message."""
    try:
        return read()
    except AttemptError as error:
        raise UnexpectedReplyError(str(error)) from None
    except ValueError as error:
        raise RefusedError(str(error)) from None

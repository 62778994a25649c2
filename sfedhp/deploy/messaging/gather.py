"""A server's side of the post: ask all at once, wait for a quorum and a limit, refuse what is wrong."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.protocol import (
    REPLIES,
    Envelope,
    Kind,
    check_books,
    counts_of,
    greeting_of,
    pack,
    seal,
    trouble_of,
    unpack,
    unseal,
)
from sfedhp.deploy.messaging.traffic import Books
from sfedhp.deploy.messaging.transport import Post
from sfedhp.deploy.messaging.turns import HopelessError, RefusedError, TroubledError, Turn, UntimelyError
from sfedhp.engine.roles import Reply
from sfedhp.wire import DecodeError
from sfedhp.wire.link import WireOptions

_GLANCE: Final = 0.1  # s between two looks at the clock while nothing arrives
_PATIENCE: Final = 1.0  # s before a member that seems not to have got a message is sent it again ...
_SLOW_LINK: Final = 2e6  # bytes/s; ... on top of what the message takes over a slow link


def patience(length: int) -> float:
    """After how many seconds a message of so many bytes that nobody has seen is taken for lost."""
    return _PATIENCE + length / _SLOW_LINK


@dataclass
class Circle:
    """The members of a server. `ask` makes it what `sfedhp.engine.roles` calls members."""

    post: Post
    names: Sequence[str]  # by seat
    run: str
    config: str
    like: Tensor  # (d,), any model of the run
    tail: Tensor  # (s,)
    down: WireOptions
    quorum: int
    seconds: float  # for one answer
    silent_seconds: float
    journal: Journal
    fresh_until: float = 0.0  # before then nobody is taken for absent (time.monotonic)
    look: Callable[[], None] = lambda: None  # called while waiting; it may raise to give up the turn
    told: Callable[[int, dict[str, Any]], None] = lambda seat, facts: None  # the facts of an answer in time
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # what each member last said of itself

    def __post_init__(self) -> None:
        now = time.monotonic()
        self._heard = dict.fromkeys(range(len(self.names)), now)
        self._behind: set[int] = set()  # they missed a time limit and have not caught up
        self._turn: Turn | None = None
        self.books = Books(len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def request(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Reply | None]:
        """One turn of training: each member's row down, answers up."""
        seats = [seat for seat in range(len(self)) if asked is None or bool(asked[seat])]
        rows = messages if asked is None else messages[seats]
        packed = dict(zip(seats, self._packed(rows, self.down), strict=True))

        def read(seat: int, envelope: Envelope) -> Reply:
            self._heed(seat, envelope.facts)
            if not (math.isfinite(envelope.weight) and envelope.weight > 0):
                raise RefusedError(f"its weight is {envelope.weight}")
            base = packed[seat][1][: len(self.like)]
            upload = unpack(envelope.parts, self.like, self.tail, base)
            self.books.book("up", seat, 0, 0, int((upload[: len(self.like)] != 0).sum()))
            return Reply(upload, envelope.weight)

        nonzeros = {seat: int((held[: len(self.like)] != 0).sum()) for seat, (_, held) in packed.items()}
        parts = {seat: pieces for seat, (pieces, _) in packed.items()}
        found = self._hold(self._open(Kind.WORK, clock, parts, nonzeros, read), self.quorum)
        for seat in seats:
            if seat not in found:
                self.books.missing[self.names[seat]] += 1
        return [found.get(seat) for seat in range(len(self))]

    def score(
        self, models: Mapping[str, Tensor], same: Mapping[str, str], clock: Clock, seconds: float
    ) -> dict[int, dict[str, Any]]:
        """Ask how good models are.

        Args:
            models: (members, d + s) each, by name.
            same: names of models that are equal to others, and which.
            clock: after which round.
            seconds: how long to wait; the run does not depend on it.

        Returns:
            What each member counted, by seat.
        """
        each = zip(*(self._packed(model, WireOptions()) for model in models.values()), strict=True)
        parts = {seat: tuple(part for pieces, _ in row for part in pieces) for seat, row in enumerate(each)}
        facts = {"models": list(models), "same": dict(same)}

        def read(seat: int, envelope: Envelope) -> dict[str, Any]:
            self._heed(seat, envelope.facts)
            return counts_of(envelope.facts)

        found = self._hold(self._open(Kind.SCORE, clock, parts, {}, read, facts), 0, seconds)
        return dict(sorted(found.items()))  # sums over it must not depend on who was first

    def farewell(self, seconds: float) -> None:
        """Tell everybody that the run is over; whoever was there once, and is away, is waited for a while."""
        nothing: dict[int, tuple[bytes, ...]] = dict.fromkeys(range(len(self)), ())
        turn = self._turn = self._open(Kind.FAREWELL, Clock(0), nothing, {}, lambda *_: True)
        for seat in turn.messages:
            self._send(turn, seat)
        began = now = time.monotonic()
        while now - began < seconds:
            known = {self.names.index(name) for name in self.facts}
            coming = len(known) < len(self) and now - began < self.silent_seconds
            if not coming and known <= turn.replies.keys():
                break
            self._take(_GLANCE)
            now = time.monotonic()
        self._turn = None
        for seat in turn.replies:
            self._heard[seat] = -math.inf  # it knows, and has gone

    def attend(self, seconds: float) -> None:
        """Hear who is there for a while, with no question open."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._take(left)

    def present(self) -> dict[str, bool]:
        """Who has been heard of lately."""
        now = time.monotonic()
        return {
            name: name in self.facts and now - self._heard[seat] < self.silent_seconds
            for seat, name in enumerate(self.names)
        }

    def close_books(self) -> Books:
        """What was sent since the last time, and who missed how many turns."""
        closed, self.books = self.books, Books(len(self.names))
        return closed

    def _packed(self, messages: Tensor, options: WireOptions) -> list[tuple[tuple[bytes, ...], Tensor]]:
        """Each member's row as parts, and what it will hold; one message to all is coded once."""
        if messages.stride(0) == 0:
            return [pack(messages[0], len(self.like), options)] * len(messages)
        return [pack(message, len(self.like), options) for message in messages]

    def _open(
        self,
        kind: Kind,
        clock: Clock,
        parts: Mapping[int, tuple[bytes, ...]],
        nonzeros: dict[int, int],
        read: Callable[[int, Envelope], Any],
        facts: dict[str, Any] | None = None,
    ) -> Turn:
        messages = {
            seat: seal(Envelope(kind, self.run, self.config, seat, clock, 0.0, facts or {}, pieces))
            for seat, pieces in parts.items()
        }
        return Turn(kind, clock, messages, nonzeros, read)

    def _hold(self, turn: Turn, quorum: int, seconds: float | None = None) -> dict[int, Any]:
        """Send, and wait: for all who can be expected, and beyond that for the quorum.

        Where too few of those asked can be expected, and enough others are there who may be asked in another
        turn, the turn passes with nobody: waiting for those who were drawn might never end.
        """
        self._turn, limit = turn, self.seconds if seconds is None else seconds
        needed, now = min(quorum, len(turn.messages)), time.monotonic()
        passing = now + self.silent_seconds  # a turn with nobody is worth little, and need not be hurried
        try:
            there = self.present()
            for seat in turn.messages:
                if there[self.names[seat]] and (seat not in self._behind or self._yields(seat)):
                    self._send(turn, seat)  # others get it when they say hello, or are free
            while True:
                now = time.monotonic()
                if not any(self._expected(turn, seat, now, limit) for seat in turn.messages):
                    if len(turn.replies) >= needed:
                        return turn.replies
                    if now >= passing and len(turn.replies) + self._others(turn) >= needed:
                        absent = [self.names[seat] for seat in turn.messages if seat not in turn.replies]
                        self.journal.write("passed", round=turn.clock.cloud_round, missing=absent)
                        return {}
                self.look()
                self._take(_GLANCE)
        finally:
            late = {seat for seat, began in turn.began.items() if now - began >= limit}
            self._behind |= late - turn.replies.keys() - turn.refused
            self._turn = None

    def _others(self, turn: Turn) -> int:
        """How many are there and free who are not asked in this turn."""
        there = self.present()
        rest = (seat for seat in range(len(self)) if seat not in turn.messages and seat not in self._behind)
        return sum(there[self.names[seat]] for seat in rest)

    def _yields(self, seat: int) -> bool:
        """Whether a member says that it leaves what it works on for a newer question."""
        return bool(self.facts.get(self.names[seat], {}).get("yields"))

    def _heed(self, seat: int, facts: dict[str, Any]) -> None:
        """Take what a member says beside its answer, or in place of one."""
        check_books(facts)
        try:
            self.told(seat, facts)
        except ValueError as error:
            raise RefusedError(f"what it booked does not fit: {error}") from None
        trouble = trouble_of(facts)
        if trouble is not None:
            raise TroubledError(trouble)

    def _expected(self, turn: Turn, seat: int, now: float, limit: float) -> bool:
        """Whether it makes sense to wait for this member."""
        if seat in turn.replies or seat in turn.refused or seat in self._behind:
            return False
        if self.names[seat] not in self.facts and now < self.fresh_until:
            return True  # everybody is given time to come up
        if now - self._heard[seat] >= self.silent_seconds:
            return False
        return now - turn.began.get(seat, now) < limit

    def _send(self, turn: Turn, seat: int) -> None:
        data = turn.messages[seat]
        turn.sent[seat] = time.monotonic()
        turn.began.setdefault(seat, turn.sent[seat])
        if turn.kind is not Kind.FAREWELL:
            way = "down" if turn.kind is Kind.WORK else "score_down"
            self.books.book(way, seat, len(data), 1, turn.nonzeros.get(seat, 0))
        self.post.send(self.names[seat], data)

    def _take(self, seconds: float) -> None:
        """One message, if there comes one."""
        try:
            sender, data = self.post.inbox.get(timeout=seconds)
        except queue.Empty:
            return
        if sender not in self.names:
            self.journal.write("refused", member=sender, reason="it has no seat here")
            return
        seat = self.names.index(sender)
        try:
            self._hear(seat, data)
        except (DecodeError, RefusedError) as error:
            self.journal.write("refused", member=sender, reason=str(error))
            if self._turn is not None and not isinstance(error, UntimelyError):
                self._turn.refused.add(seat)
                if isinstance(error, TroubledError):
                    self._turn.troubled.add(seat)
                # A run does not depend on its figures.
                if self._turn.kind is Kind.WORK and self._turn.troubled == self._turn.messages.keys():
                    raise HopelessError(str(error)) from None

    def _hear(self, seat: int, data: bytes) -> None:
        self._heard[seat] = time.monotonic()
        envelope = unseal(data)
        if envelope.member != seat:
            raise RefusedError(f"it speaks for seat {envelope.member} and sits on {seat}")
        if envelope.config != self.config:
            raise RefusedError(f"its config is {envelope.config} and not {self.config}")
        turn = self._turn
        if envelope.kind is Kind.HELLO:
            self._greet(seat, greeting_of(envelope.facts))
            return
        if envelope.kind in (Kind.REPLY, Kind.SCORES):
            way = "up" if envelope.kind is Kind.REPLY else "score_up"
            self.books.book(way, seat, len(data), 1, 0)
        if seat in self._behind:
            self._behind.discard(seat)  # its late answer shows that it is free
            if turn is not None and seat in turn.messages.keys() - turn.sent.keys():
                self._send(turn, seat)
        if envelope.run != self.run:
            raise UntimelyError(f"it is of run {envelope.run} and not {self.run}")
        if turn is None or envelope.kind is not REPLIES[turn.kind] or envelope.clock != turn.clock:
            what = f"{envelope.kind.name.lower()} of round {tuple(envelope.clock)}"
            raise UntimelyError(f"it is a {what}, which is not asked for now")
        if seat not in turn.messages or seat in turn.replies:
            raise UntimelyError("it answers twice, or was not asked")
        turn.replies[seat] = turn.read(seat, envelope)
        turn.refused.discard(seat)
        turn.troubled.discard(seat)

    def _greet(self, seat: int, facts: dict[str, Any]) -> None:
        """A member says that it is there; if it has not got the question, it is sent again."""
        name = self.names[seat]
        before = self.facts.get(name)
        self.facts[name] = facts
        if before is None:
            self.journal.write("came", member=name)
        turn = self._turn
        if turn is None or seat not in turn.messages or seat in turn.replies:
            return
        seen, idle = facts.get("seen"), facts.get("idle")
        waited = time.monotonic() - turn.sent.get(seat, -math.inf)
        patient = patience(len(turn.messages[seat]))
        free = seen is None or idle is not None
        if seen == [self.run, int(turn.kind), *turn.clock]:
            # It may have got it from this server before a restart; its time runs from now at the latest.
            turn.began.setdefault(seat, time.monotonic())
            # It has answered, and the answer was lost on its way; who is in trouble would say so again.
            again = (idle or 0.0) > 2 * patient and waited > patient and seat not in turn.troubled
        elif free or facts.get("yields"):
            restarted = seen is None and before is not None and before.get("seen") is not None
            again = restarted or waited > patient
        else:
            # It works on an older question, and will find this one, or say that it is free.
            again = seat not in turn.sent and seat not in self._behind
        if again:
            if free:
                self._behind.discard(seat)
            self._send(turn, seat)

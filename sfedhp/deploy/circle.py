"""A server's side of the post: ask all at once, wait for a quorum and a limit, refuse what is wrong."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from sfedhp.deploy.books import Books
from sfedhp.deploy.journal import Journal
from sfedhp.deploy.messages import REPLIES, Envelope, Kind, pack, seal, unpack, unseal
from sfedhp.deploy.post import Post
from sfedhp.deploy.turns import HopelessError, RefusedError, TroubledError, Turn, UntimelyError
from sfedhp.roles import Answer
from sfedhp.types import Clock
from sfedhp.wire import DecodeError
from sfedhp.wire.links import WireOptions

_GLANCE: Final = 0.1  # s between two looks at the clock while nothing arrives
_PATIENCE: Final = 1.0  # s before a member that seems not to have got a message is sent it again


@dataclass
class Circle:
    """The members of a server. `ask` makes it what `sfedhp.roles` calls members."""

    post: Post
    names: Sequence[str]  # by seat
    run: str
    config: str
    like: Tensor  # (d,), any model of the run
    tail: Tensor  # (s,)
    down: WireOptions
    up: WireOptions
    quorum: int
    seconds: float  # for one answer
    silent_seconds: float
    journal: Journal
    fresh_until: float = 0.0  # before then nobody is taken for absent (time.monotonic)
    look: Callable[[], None] = lambda: None  # called while waiting; it may raise to give up the turn
    told: Callable[[int, dict[str, Any]], None] = lambda seat, facts: None  # the facts of a reply in time
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # what each member last said of itself

    def __post_init__(self) -> None:
        now = time.monotonic()
        self._heard = dict.fromkeys(range(len(self.names)), now)
        self._behind: set[int] = set()  # they missed a time limit and have not caught up
        self._turn: Turn | None = None
        self.books = Books(len(self.names))

    def __len__(self) -> int:
        return len(self.names)

    def ask(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Answer | None]:
        """One turn of training: each member's row down, answers up."""
        seats = [seat for seat in range(len(self)) if asked is None or bool(asked[seat])]
        rows = messages if asked is None else messages[seats]
        packed = dict(zip(seats, self._packed(rows, self.down), strict=True))

        def read(seat: int, envelope: Envelope) -> Answer:
            self.told(seat, envelope.facts)
            if "trouble" in envelope.facts:
                raise TroubledError(envelope.facts["trouble"])
            if not (math.isfinite(envelope.weight) and envelope.weight > 0):
                raise RefusedError(f"its weight is {envelope.weight}")
            base = packed[seat][1][: len(self.like)]
            upload = unpack(envelope.parts, self.like, self.tail, base)
            self.books.book("up", seat, 0, 0, int((upload[: len(self.like)] != 0).sum()))
            return Answer(upload, envelope.weight)

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
        turn = self._open(Kind.SCORE, clock, parts, {}, lambda _, envelope: envelope.facts, facts)
        return self._hold(turn, 0, seconds)

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
        """Send, and wait: for all who can be expected, and beyond that for the quorum."""
        self._turn, limit = turn, self.seconds if seconds is None else seconds
        needed = min(quorum, len(turn.messages))
        try:
            there = self.present()
            for seat in turn.messages:
                if there[self.names[seat]]:
                    self._send(turn, seat)  # others get it when they say hello
            while True:
                now = time.monotonic()
                expected = any(self._expected(turn, seat, now, limit) for seat in turn.messages)
                if len(turn.replies) >= needed and not expected:
                    late = {seat for seat, began in turn.began.items() if now - began >= limit}
                    self._behind |= late - turn.replies.keys() - turn.refused
                    return turn.replies
                self.look()
                self._take(_GLANCE)
        finally:
            self._turn = None

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
                if self._turn.troubled == self._turn.messages.keys():
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
            self._greet(seat, envelope.facts)
            return
        if envelope.kind in (Kind.REPLY, Kind.SCORES):
            way = "up" if envelope.kind is Kind.REPLY else "score_up"
            self.books.book(way, seat, len(data), 1, 0)
        self._behind.discard(seat)
        if envelope.run != self.run:
            raise UntimelyError(f"it is of run {envelope.run} and not {self.run}")
        if turn is None or envelope.kind is not REPLIES[turn.kind] or envelope.clock != turn.clock:
            what = f"{envelope.kind.name.lower()} of round {tuple(envelope.clock)}"
            raise UntimelyError(f"it is a {what}, which is not asked for now")
        if seat not in turn.messages or seat in turn.replies:
            raise UntimelyError("it answers twice, or was not asked")
        turn.replies[seat] = turn.read(seat, envelope)
        turn.refused.discard(seat)

    def _greet(self, seat: int, facts: dict[str, Any]) -> None:
        """A member says that it is there; if it has not got the question, it is sent again."""
        first = self.names[seat] not in self.facts
        self.facts[self.names[seat]] = facts
        if first:
            self.journal.write("came", member=self.names[seat])
        turn, now = self._turn, time.monotonic()
        if turn is None or seat not in turn.messages or seat in turn.replies:
            return
        seen = facts.get("seen") == [self.run, int(turn.kind), *turn.clock]
        # It has answered, and the answer was lost on its way.
        lost = seen and (facts.get("idle") or 0.0) > 2 * _PATIENCE
        if (lost or not seen) and now - turn.sent.get(seat, -math.inf) > _PATIENCE:
            self._behind.discard(seat)
            self._send(turn, seat)

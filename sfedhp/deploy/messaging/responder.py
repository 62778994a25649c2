"""A member's side of the post: say that it is there, take the newest question, answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, seal, unseal
from sfedhp.deploy.messaging.transport import SERVER, Post
from sfedhp.wire import DecodeError

BEAT: Final = 1.0  # s between two words of a member that it is there


@dataclass
class Desk:
    """Where a member gets its questions."""

    post: Post
    seat: int
    config: str
    journal: Journal
    about: Callable[[], dict[str, Any]] = dict  # more to say with each hello
    _seen: list[Any] | None = field(default=None, init=False)  # the newest question taken, or had
    _answered: float | None = field(default=None, init=False)  # when; None while it works
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def open(self) -> None:
        """Begin to say that the member is there, in the background."""
        threading.Thread(target=self._greet, name="hello", daemon=True).start()

    def close(self) -> None:
        """Say no more."""
        self._ended.set()

    def take(self, seconds: float) -> Envelope | None:
        """The newest question, if one comes within so many seconds; older ones are left out."""
        newest = None
        try:
            while True:
                sender, data = self.post.inbox.get(timeout=seconds if newest is None else 0)
                newest = self._checked(sender, data) or newest
        except queue.Empty:
            return newest

    def took(self, question: Envelope) -> None:
        """The question is safely here: it need not be sent again."""
        self._seen = [question.run, int(question.kind), *question.clock]
        self._answered = None

    def answer(self, kind: Kind, question: Envelope, **content: Any) -> None:
        """Answer a question."""
        data = seal(Envelope(kind, question.run, self.config, self.seat, question.clock, **content))
        self.post.send(SERVER, data)
        self.answered()

    def answered(self) -> None:
        """The question has its answer; if that is lost, the question may come again."""
        self._answered = time.monotonic()

    def _checked(self, sender: str, data: bytes) -> Envelope | None:
        """The question, if it comes from the server, is whole and for this member."""
        try:
            envelope = unseal(data)
            trouble = None
            if sender != SERVER:
                trouble = "it does not come from the server"
            elif envelope.member != self.seat:
                trouble = f"it is for seat {envelope.member}"
            elif envelope.config != self.config:
                trouble = f"its config is {envelope.config} and not {self.config}"
        except DecodeError as error:
            trouble = str(error)
        if trouble:
            self.journal.write("refused", member=sender, reason=trouble)
            return None
        return envelope

    def _greet(self) -> None:
        while not self._ended.is_set():
            idle = None if self._answered is None else time.monotonic() - self._answered
            facts = {"seen": self._seen, "idle": idle, **self.about()}
            hello = Envelope(Kind.HELLO, NO_RUN, self.config, self.seat, Clock(0), 0.0, facts)
            self.post.send(SERVER, seal(hello))
            self._ended.wait(BEAT)

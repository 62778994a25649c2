"""Member side of the protocol: send heartbeats, receive the newest request, reply."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sfedhp._version import __version__
from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.traffic import Traffic
from sfedhp.deploy.messaging.transport import SERVER, Transport
from sfedhp.deploy.rejection_log import RejectionLog
from sfedhp.wire import DecodeError

HEARTBEAT: Final = 1.0  # s between two heartbeats of a member


@dataclass
class Responder:
    """Receives the server's requests, sends heartbeats and replies."""

    transport: Transport
    seat: int
    config: str
    log: EventLog
    more_metadata: Callable[[], dict[str, Any]] = dict  # added to each heartbeat
    clock: Callable[[], float] = time.monotonic
    heartbeat: float = HEARTBEAT
    _seen: list[Any] | None = field(default=None, init=False)  # the newest request acknowledged
    _answered_at: float | None = field(default=None, init=False)  # None while it works
    _rejections: RejectionLog = field(init=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._rejections = RejectionLog(self.log, self.clock)
        self._traffic = Traffic(1)

    def start(self) -> None:
        """Send heartbeats in the background."""
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Stop the background thread that sends heartbeats."""
        self._stopped.set()

    def receive(self, timeout: float) -> Envelope | None:
        """The newest request, if one comes within the timeout; older ones are skipped."""
        newest = None
        try:
            while True:
                sender, data = self.transport.inbox.get(timeout=timeout if newest is None else 0)
                newest = self._checked(sender, data) or newest
        except queue.Empty:
            return newest

    def acknowledge(self, request: Envelope) -> None:
        """Say in heartbeats from now on that the request has arrived, so that it is not sent again."""
        self._seen = [request.run, int(request.kind), *request.clock]
        self._answered_at = None

    def reply(self, kind: Kind, request: Envelope, **content: Any) -> None:
        """Send a reply, and say in heartbeats that it was sent."""
        envelope = Envelope(kind, request.run, self.config, self.seat, request.clock, **content)
        data = encode_message(envelope)
        self._count(kind, data)
        self.transport.send(SERVER, data)
        self.mark_answered()

    def take_traffic(self) -> Traffic:
        """The requests that came and the replies that were sent since the last call."""
        taken, self._traffic = self._traffic, Traffic(1)
        return taken

    def mark_answered(self) -> None:
        """Say in heartbeats that the reply was sent; if it is lost, the server sends the request again."""
        self._answered_at = self.clock()

    def _checked(self, sender: str, data: bytes) -> Envelope | None:
        """The request, if it comes from the server, is undamaged, and is for this member."""
        try:
            envelope = decode_message(data)
            error = None
            if sender != SERVER:
                error = "it does not come from the server"
            elif envelope.member != self.seat:
                error = f"it is for seat {envelope.member}"
            elif envelope.config != self.config:
                error = f"its config is {envelope.config} and not {self.config}"
        except DecodeError as damage:
            error = str(damage)
        if error:
            self._rejections.note(error, sender)
            return None
        self._count(envelope.kind, data)
        return envelope

    def _count(self, kind: Kind, data: bytes) -> None:
        self._traffic.add_message(kind, 0, len(data))

    def _send_heartbeats(self) -> None:
        while not self._stopped.is_set():
            idle = None if self._answered_at is None else self.clock() - self._answered_at
            metadata = {
                "seen": self._seen,
                "idle": idle,
                "version": __version__,
                **self.more_metadata(),
            }
            hello = Envelope(Kind.HELLO, NO_RUN, self.config, self.seat, Clock(0), 0.0, metadata)
            self.transport.send(SERVER, encode_message(hello))
            self._stopped.wait(self.heartbeat)

"""Messages that have arrived: a bounded queue for each sender, read in turn."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

_MESSAGES: Final = 64  # of one sender that wait at most


class BoundedInbox:
    """What arrives, of known senders only. Each has its own limits, so that a flood costs only its sender.

    A message is dropped where its sender is not known, where it is too large, or where the sender's queue is
    full. The protocol sends again what was lost.
    """

    def __init__(
        self,
        senders: Collection[str],
        largest: int,
        on_drop: Callable[[str, str], None] = lambda sender, reason: None,
        messages: int = _MESSAGES,
    ):
        """Accept messages of these senders.

        Args:
            senders: their names.
            largest: bytes of one message; a sender's waiting messages have twice as many at most.
            on_drop: called with the sender and the reason when a message is dropped.
            messages: of one sender that wait at most.
        """
        self._queues: dict[str, deque[bytes]] = {name: deque() for name in senders}
        self._sizes = dict.fromkeys(self._queues, 0)  # bytes that wait
        self._turns: deque[str] = deque()  # senders with waiting messages, in the order of their turns
        self._largest, self._messages, self._on_drop = largest, messages, on_drop
        self._arrived = threading.Condition()

    def put(self, message: tuple[str, bytes]) -> None:
        """Add a message, or drop it."""
        sender, data = message
        with self._arrived:
            reason = self._obstacle(sender, len(data))
            if reason is None:
                waiting = self._queues[sender]
                waiting.append(data)
                self._sizes[sender] += len(data)
                if len(waiting) == 1:
                    self._turns.append(sender)
                self._arrived.notify()
        if reason is not None:
            self._on_drop(sender, reason)

    def get(self, block: bool = True, timeout: float | None = None) -> tuple[str, bytes]:
        """The next message with its sender's name, each sender in turn.

        Raises:
            queue.Empty: none came in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._arrived:
            while not self._turns:
                left = None if until is None else until - time.monotonic()
                if not block or (left is not None and left <= 0):
                    raise queue.Empty
                self._arrived.wait(left)
            sender = self._turns.popleft()
            waiting = self._queues[sender]
            data = waiting.popleft()
            self._sizes[sender] -= len(data)
            if waiting:
                self._turns.append(sender)
            return sender, data

    def _obstacle(self, sender: str, size: int) -> str | None:
        """Why a message is dropped; None: it is not."""
        if sender not in self._queues:
            return "it is not a member of this server"
        if size > self._largest:
            return f"a message of more than {self._largest} bytes"
        if len(self._queues[sender]) >= self._messages or self._sizes[sender] + size > 2 * self._largest:
            return "it sends faster than its messages are read"
        return None

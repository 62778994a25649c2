"""The interface of a transport for messages between a server and its members."""

from __future__ import annotations

from typing import Protocol

SERVER = "server"  # what members call their server


class Inbox(Protocol):
    """Messages that have arrived, in order; `queue.SimpleQueue` is one."""

    def get(self, block: bool = True, timeout: float | None = None) -> tuple[str, bytes]:
        """The next message with its sender's name; raises `queue.Empty` after `timeout` seconds."""


class Transport(Protocol):
    """Carries bytes between a server and its members; it authenticates senders, but may lose messages."""

    @property
    def inbox(self) -> Inbox:
        """The messages that arrived for this side, with their senders."""

    def send(self, to: str, data: bytes) -> None:
        """Send without waiting. The protocol sends lost messages again, so a failure is not an error."""

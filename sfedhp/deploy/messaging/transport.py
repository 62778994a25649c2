"""How messages get from one site to another, as the roles see it."""

from __future__ import annotations

import queue
from typing import Protocol


class Post(Protocol):
    """Carries bytes between a server and its members; who sent them is certain, that they arrive is not."""

    inbox: queue.SimpleQueue[tuple[str, bytes]]  # (sender's name, message), as they come

    def send(self, to: str, data: bytes) -> None:
        """Send without waiting. What is lost is asked for again, so a failure is no error."""


SERVER = "server"  # what its members call a server

"""One question of a server to its members, and why replies to it may not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.protocol import Envelope, Kind


class RefusedError(ValueError):
    """A message that does not count, and why."""


class TroubledError(RefusedError):
    """A member says itself that it has nothing to send, such as a model that is not finite."""


class HopelessError(Exception):
    """All members are in trouble, and nobody can answer."""


class UntimelyError(RefusedError):
    """A reply to what is not asked now: a late one, or a second one. The right one may still come."""


@dataclass
class Turn:
    """One question to the members, while it is open."""

    kind: Kind
    clock: Clock
    messages: dict[int, bytes]  # by seat
    nonzeros: dict[int, int]
    read: Callable[[int, Envelope], Any]
    replies: dict[int, Any] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)  # not waited for: what they said does not count
    troubled: set[int] = field(default_factory=set)  # of these, those who cannot answer
    sent: dict[int, float] = field(default_factory=dict)  # when, last
    began: dict[int, float] = field(default_factory=dict)  # when, first: from then on its time runs

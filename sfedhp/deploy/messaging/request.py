"""One request of a server to its members: what it sent when, the replies, and when to resend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.member import Member, MemberState
from sfedhp.deploy.messaging.protocol import Envelope, Kind, encode_message

_RESEND_SECONDS: Final = 1.0  # s; a message that a member has not received by then is lost ...
_MOMENT: Final = 1.0  # s to wait for more replies than needed, from members that send heartbeats
_SLOW_LINK: Final = 2e6  # bytes/s; ... allowing for the time it takes over a slow link


class RefusedError(ValueError):
    """A message that does not count, and why."""


class MemberFailedError(RefusedError):
    """A member says that it has no reply, for example because its model is not finite."""


class UnexpectedReplyError(RefusedError):
    """A reply to another request, or a second one. The right one may still come."""


class AllMembersFailedError(Exception):
    """Every member that got the request says that it has no reply."""


@dataclass
class Request:
    """A request to the members, while it is open."""

    kind: Kind
    run: str
    clock: Clock
    messages: dict[int, bytes]  # by seat
    nonzeros: dict[int, int]  # weights in each message
    read: Callable[[int, Envelope], Any]  # what counts of a reply; raises DecodeError or RefusedError
    replies: dict[int, Any] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # seats that say that they have no reply
    sent_at: dict[int, float] = field(default_factory=dict)  # when the message was last sent
    started_at: dict[int, float] = field(default_factory=dict)  # from when on a member's time runs
    enough: float = math.inf  # number of replies after which the server waits only a moment longer
    enough_at: float = math.inf  # when that many had arrived

    @classmethod
    def of_parts(
        cls,
        kind: Kind,
        run: str,
        config: str,
        clock: Clock,
        parts: Mapping[int, tuple[bytes, ...]],
        read: Callable[[int, Envelope], Any],
        *,
        nonzeros: dict[int, int] | None = None,
        metadata: dict[str, Any] | None = None,
        more: Mapping[int, dict[str, Any]] | None = None,
    ) -> Request:
        """A request that sends each seat its parts, and all the same metadata; some seats get `more`."""
        metadata, more = metadata or {}, more or {}
        messages = {
            seat: encode_message(
                Envelope(kind, run, config, seat, clock, 0.0, metadata | more.get(seat, {}), pieces)
            )
            for seat, pieces in parts.items()
        }
        return cls(kind, run, clock, messages, nonzeros or {}, read)

    @property
    def key(self) -> list[Any]:
        """The key by which heartbeats name the request."""
        return [self.run, int(self.kind), *self.clock]

    def has_enough(self, now: float) -> bool:
        """Whether there have been enough replies for a short time."""
        if len(self.replies) >= self.enough:
            self.enough_at = min(self.enough_at, now)
        return now - self.enough_at >= _MOMENT

    def timed_out(self, seat: int, now: float, timeout: float) -> bool:
        """Whether a member's time is over."""
        return now - self.started_at.get(seat, now) >= timeout

    def must_send(self, member: Member, restarted: bool, now: float) -> bool:
        """Whether a heartbeat shows that the member has to be sent the request, for the first time or again.

        Args:
            member: with what the heartbeat says.
            restarted: it had a request before this heartbeat, and has none now.
            now: the time.
        """
        after = resend_after(len(self.messages[member.seat]))
        waiting = now - self.sent_at.get(member.seat, -math.inf)
        sent_lately = waiting <= after
        if member.seen == self.key:
            # It has the request. If it replied a while ago, the reply was lost, and it will send it again.
            # A member that failed would only report the failure again.
            reply_lost = (member.idle_seconds or 0.0) > 2 * after
            return reply_lost and not sent_lately and member.seat not in self.failed
        if restarted:
            # The message was lost. A member that reports this all the time must not get a model each time.
            return waiting > _RESEND_SECONDS
        if member.free or member.yields:
            return not sent_lately  # the request was lost, or not sent yet
        # It works on an older request, and will read this one from its inbox afterwards.
        return member.seat not in self.sent_at and member.progress is not MemberState.LATE


def resend_after(size: int) -> float:
    """The seconds after which a message of this many bytes counts as lost if it has not arrived."""
    return _RESEND_SECONDS + size / _SLOW_LINK

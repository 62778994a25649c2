"""A server's view of a member: a state machine, and the content of the last heartbeat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final


class MemberState(Enum):
    """The state of a member with respect to the open request, as far as its server knows."""

    ABSENT = auto()  # silent for too long: ignored until its next message
    IDLE = auto()  # has not got the open request
    WORKING = auto()  # has got the open request, and its time runs
    LATE = auto()  # missed a timeout: the server does not wait for it or send to it until it is idle
    REFUSED = auto()  # sent something invalid: not waited for, but a valid reply still counts
    ANSWERED = auto()  # its reply counts


class MemberEvent(Enum):
    """What changes the state of a member."""

    OPENED = auto()  # its server opens a request
    SENT = auto()  # the open request is sent to it, or its heartbeat says that it has it
    TIMED_OUT = auto()  # its time for the open request is over
    FREED = auto()  # a reply to an earlier request, or its heartbeat, shows that it is idle
    ACCEPTED = auto()  # its reply to the open request is valid
    REJECTED = auto()  # while a request is open, it sends what cannot be read or does not count


_S, _E = MemberState, MemberEvent
# An event changes only the states listed here. ABSENT is not listed: it depends only on the time since
# the last message, and a member that sends again has its earlier state.
TRANSITIONS: Final[dict[MemberEvent, dict[MemberState, MemberState]]] = {
    _E.OPENED: {_S.WORKING: _S.IDLE, _S.REFUSED: _S.IDLE, _S.ANSWERED: _S.IDLE},  # LATE stays LATE
    _E.SENT: {_S.IDLE: _S.WORKING},
    _E.TIMED_OUT: {_S.IDLE: _S.LATE, _S.WORKING: _S.LATE},
    _E.FREED: {_S.LATE: _S.IDLE},
    _E.ACCEPTED: {_S.IDLE: _S.ANSWERED, _S.WORKING: _S.ANSWERED, _S.REFUSED: _S.ANSWERED},
    _E.REJECTED: {_S.IDLE: _S.REFUSED, _S.WORKING: _S.REFUSED},
}


@dataclass
class Member:
    """One member of a server."""

    name: str
    seat: int
    heard_at: float  # when its last message came; at first, when its server started
    silent_seconds: float  # after this time without a message it is absent
    hello: dict[str, Any] | None = None  # what its last heartbeat said; None before the first
    progress: MemberState = MemberState.IDLE  # its state while it is not absent
    rows: list[int] | None = None  # of a client: training, test and validation rows, as it reported first
    first_weight: float | None = None  # of its first reply in this run

    def on(self, event: MemberEvent) -> None:
        """Make the transition of an event."""
        self.progress = TRANSITIONS[event].get(self.progress, self.progress)

    def state(self, now: float) -> MemberState:
        """Its state at this time."""
        done = self.progress in (MemberState.ANSWERED, MemberState.REFUSED)
        return MemberState.ABSENT if self.silent(now) and not done else self.progress

    def silent(self, now: float) -> bool:
        """Whether it has sent nothing for too long."""
        return now - self.heard_at >= self.silent_seconds

    def present(self, now: float) -> bool:
        """Whether a heartbeat of it came, and it sent something lately."""
        return self.hello is not None and not self.silent(now)

    @property
    def seen(self) -> list[Any] | None:
        """The newest request that it has: run, kind, cloud round, edge round."""
        return None if self.hello is None else self.hello.get("seen")

    @property
    def idle_seconds(self) -> float | None:
        """For how many seconds it has been idle since its last reply; None while it works."""
        return None if self.hello is None else self.hello.get("idle")

    @property
    def free(self) -> bool:
        """Whether it works on nothing."""
        return self.seen is None or self.idle_seconds is not None

    @property
    def yields(self) -> bool:
        """Whether it drops what it works on for a newer request."""
        return bool(self.hello and self.hello.get("yields"))


def states_of(members: Iterable[Member], now: float) -> dict[str, dict[str, Any]]:
    """The state of each member with respect to the open request, and the seconds of its silence, by name."""
    return {
        member.name: {
            "state": "absent" if member.hello is None else member.state(now).name.lower(),
            "silent": round(min(now - member.heard_at, 1e9), 1),
        }
        for member in members
    }

"""Server side of the protocol: send a request to the members, receive heartbeats and replies, resend."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from sfedhp.core.late import NOBODY_LATE, LateOptions
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.acceptance import Acceptance, check_header
from sfedhp.deploy.messaging.late_replies import LateReplies
from sfedhp.deploy.messaging.member import Member, MemberEvent, MemberState
from sfedhp.deploy.messaging.metadata import check_traffic, error_of, hello_of
from sfedhp.deploy.messaging.payload import unpack
from sfedhp.deploy.messaging.protocol import REPLIES, Envelope, Kind, decode_message
from sfedhp.deploy.messaging.request import (
    AllMembersFailedError,
    MemberFailedError,
    RefusedError,
    Request,
    UnexpectedReplyError,
)
from sfedhp.deploy.messaging.traffic import Traffic
from sfedhp.deploy.messaging.transport import Transport
from sfedhp.deploy.rejection_log import RejectionLog
from sfedhp.engine.roles import Reply
from sfedhp.wire import DecodeError
from sfedhp.wire.link import WireOptions

POLL: Final = 0.1  # s between two checks of the time while no message arrives
_NEEDED: Final = (Kind.WORK, Kind.SUM)  # requests that every run needs replies to


@dataclass
class MemberExchange:
    """Carries one request at a time to the members of a server, and takes their heartbeats and replies.

    Time passes only in `clock` and in the transport's inbox, so a test can replace both.
    """

    transport: Transport
    names: Sequence[str]  # by seat
    run: str
    config: str
    model: Tensor  # any message to its members, without statistics
    statistics: Tensor  # (s,)
    link: WireOptions  # of messages to the members
    quorum: int  # replies to a training request, at least
    timeout: float  # s for one reply
    silent_seconds: float
    log: EventLog
    accept: Acceptance = field(default_factory=Acceptance)
    late: LateOptions = NOBODY_LATE  # how many replies end a training request, and what later ones weigh
    start_until: float = 0.0  # until then, wait for members that have not joined yet
    on_wait: Callable[[], None] = lambda: None  # called while waiting; it may raise to give up the request
    on_metadata: Callable[[int, dict[str, Any]], None] = lambda seat, metadata: None  # of a timely reply
    notice: Callable[[], dict[str, Any]] = dict  # metadata of training requests
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        now = self.clock()
        self.members = [Member(name, seat, now, self.silent_seconds) for seat, name in enumerate(self.names)]
        self.traffic = Traffic(len(self.names))
        self._request: Request | None = None
        self._late = LateReplies(self.late)
        self._failing: set[int] = set()  # seats whose last answer was that they have no reply
        self.totals: dict[str, Any] | None = None  # of all training rows, by which members scale theirs
        self._informed: set[int] = set()  # seats that have them
        self._rejections = RejectionLog(self.log, self.clock)

    def __len__(self) -> int:
        return len(self.names)

    def listen(self, seconds: float) -> None:
        """Receive heartbeats for a while, with no request open."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            self._receive(left)

    def present(self) -> dict[str, bool]:
        """Whether each member sent something recently, by name."""
        now = self.clock()
        return {member.name: member.present(now) for member in self.members}

    def metadata(self) -> dict[str, dict[str, Any]]:
        """The metadata of each member's last heartbeat, by name, for members that sent one."""
        return {member.name: member.hello for member in self.members if member.hello is not None}

    def wait_for_all(self, seconds: float) -> None:
        """From now on, wait this long for members that have not sent a heartbeat yet."""
        self.start_until = self.clock() + seconds

    def forget(self) -> None:
        """Forget which members have sent a heartbeat, so that a new run waits for all of them again."""
        for member in self.members:
            member.hello = member.rows = member.first_weight = None
        self._failing.clear()
        self._informed.clear()

    def take_traffic(self) -> Traffic:
        """The traffic since the last call, and who missed how many requests."""
        taken, self.traffic = self.traffic, Traffic(len(self.names))
        return taken

    def _totals_for(self, seats: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The metadata with the totals, for the seats that do not have them yet."""
        new = () if self.totals is None else set(seats) - self._informed
        return {seat: {"totals": self.totals} for seat in new}

    def _open(self, request: Request) -> None:
        self._request = request
        for member in self.members:
            member.on(MemberEvent.OPENED)

    def _wait(self, request: Request, quorum: int, timeout: float) -> dict[int, Any]:
        """Send the request, and wait until no other member can be expected and there are enough replies.

        If too few of the asked members can be expected, but enough others are present for a later request,
        the request ends without replies: waiting for the sampled members might never end.
        """
        needed = min(quorum, len(request.messages))
        # A request without replies is useless, so absent members get some time.
        pass_after = self.clock() + self.silent_seconds
        self._open(request)
        try:
            for member in self._asked(request):
                late = member.progress is MemberState.LATE
                if member.present(self.clock()) and (not late or member.yields):
                    self._send(request, member)  # others get it with their next heartbeat
            while True:
                now = self.clock()
                for member in self._asked(request):
                    if request.timed_out(member.seat, now, timeout):
                        member.on(MemberEvent.TIMED_OUT)
                late_enough = request.kind is Kind.WORK and self._late.enough(request.replies)
                if late_enough or request.has_enough(now):
                    return request.replies
                if not any(self._expected(member, now) for member in self._asked(request)):
                    if len(request.replies) >= needed or self._ends_early(request):
                        return request.replies
                    if now >= pass_after and len(request.replies) + self._others(request, now) >= needed:
                        missing = [m.name for m in self._asked(request) if m.seat not in request.replies]
                        self.log.write("passed", round=request.clock.cloud_round, missing=missing)
                        return {}
                self.on_wait()
                self._receive(POLL)
        finally:
            self._request = None

    def _ends_early(self, request: Request) -> bool:
        """Whether a request ends with too few replies if no other member can be expected now."""
        return False

    def _asked(self, request: Request) -> list[Member]:
        return [self.members[seat] for seat in request.messages]

    def _expected(self, member: Member, now: float) -> bool:
        """Whether it makes sense to wait for a reply of this member."""
        starting = member.hello is None and now < self.start_until
        state = member.progress if starting else member.state(now)
        return state in (MemberState.IDLE, MemberState.WORKING)

    def _others(self, request: Request, now: float) -> int:
        """How many members that are not asked by this request are present and not late."""
        rest = (member for member in self.members if member.seat not in request.messages)
        return sum(member.present(now) and member.progress is not MemberState.LATE for member in rest)

    def _send(self, request: Request, member: Member) -> None:
        seat, data = member.seat, request.messages[member.seat]
        request.sent_at[seat] = self.clock()
        request.started_at.setdefault(seat, request.sent_at[seat])
        member.on(MemberEvent.SENT)
        self.traffic.add_message(request.kind, seat, len(data), request.nonzeros.get(seat, 0))
        self.transport.send(member.name, data)

    def _receive(self, timeout: float) -> None:
        """Handle the next message, if one comes within the timeout."""
        try:
            sender, data = self.transport.inbox.get(timeout=timeout)
        except queue.Empty:
            self._rejections.write()
            return
        if sender not in self.names:
            self._rejections.note("it is not a member of this server", sender)
            return
        member = self.members[self.names.index(sender)]
        try:
            self._on_message(member, data)
        except UnexpectedReplyError as error:
            self._rejections.note(str(error), sender)
        except (DecodeError, RefusedError) as error:
            self._rejections.note(str(error), sender)
            self._on_rejected(member, error)

    def _on_message(self, member: Member, data: bytes) -> None:
        member.heard_at = self.clock()
        envelope = decode_message(data, self.accept.metadata_bytes(member.seat))
        check_header(envelope, member, self.config)
        if envelope.kind is Kind.HELLO:
            hello = hello_of(envelope.metadata)
            self.accept.hello(member, hello)
            self._on_heartbeat(member, hello)
        else:
            self._on_reply(member, envelope, len(data))

    def _on_heartbeat(self, member: Member, hello: dict[str, Any]) -> None:
        """Keep what the heartbeat says; send the request if the member does not have it."""
        if member.hello is None:
            self.log.write("came", member=member.name)
        had_request, member.hello = member.seen is not None, hello
        request = self._request
        if request is None or member.seat not in request.messages or member.seat in request.replies:
            return
        now = self.clock()
        if member.seen == request.key:
            # It may have received the request before this server restarted; its time starts now.
            request.started_at.setdefault(member.seat, now)
            member.on(MemberEvent.SENT)
        if request.must_send(member, had_request and member.seen is None, now):
            if member.free:
                member.on(MemberEvent.FREED)
            self._send(request, member)

    def _on_reply(self, member: Member, envelope: Envelope, size: int) -> None:
        seat, request = member.seat, self._request
        self.traffic.add_message(envelope.kind, seat, size)
        if member.progress is MemberState.LATE:
            member.on(MemberEvent.FREED)
            if request is not None and seat in request.messages and seat not in request.started_at:
                self._send(request, member)
        if envelope.run != self.run:
            raise UnexpectedReplyError(f"it belongs to run {envelope.run}, and this is run {self.run}")
        if envelope.kind is Kind.REPLY and self._late.takes(seat, envelope, request):
            cloud_round = int(envelope.clock.cloud_round)
            reply = self._read_reply(seat, envelope, self._late.sent(seat, cloud_round))
            self._late.add(seat, cloud_round, reply)
            self.log.write("late", member=member.name, round=cloud_round + 1)
            return
        if request is None or envelope.kind is not REPLIES[request.kind] or envelope.clock != request.clock:
            what = f"{envelope.kind.name.lower()} of round {tuple(envelope.clock)}"
            raise UnexpectedReplyError(f"it is a {what}, which is not requested now")
        if seat not in request.messages or seat in request.replies:
            raise UnexpectedReplyError("it is a second reply, or one that was not requested")
        request.replies[seat] = request.read(seat, envelope)
        request.failed.discard(seat)
        if request.kind in _NEEDED:
            self._failing.discard(seat)
        if self.totals is not None:
            self._informed.add(seat)
        member.on(MemberEvent.ACCEPTED)

    def _read_reply(self, seat: int, envelope: Envelope, sent: Tensor) -> Reply:
        """A reply to a training request, if it counts; `sent` (d,) is what its member received."""
        self._check_result(seat, envelope.metadata)
        weight = self.accept.weight(self.members[seat], envelope.weight)
        upload = unpack(envelope.parts, self.model, self.statistics, sent)
        self.accept.upload(upload, sent)
        self._pass_on(seat, envelope.metadata)
        self.traffic.add("up", seat, 0, 0, int((upload[: len(sent)] != 0).sum()))
        self._late.counted(seat, int(envelope.clock.cloud_round))
        return Reply(upload, weight)

    def _check_result(self, seat: int, metadata: dict[str, Any]) -> None:
        """Check the metadata of a reply, which may be an error in place of a result."""
        check_traffic(metadata)
        error_message = error_of(metadata)
        if error_message is not None:
            if self._request is not None and seat not in self._request.failed:
                self._pass_on(seat, metadata)  # once, also if the reply does not count: its bytes were sent
            raise MemberFailedError(error_message or "it does not say why")

    def _pass_on(self, seat: int, metadata: dict[str, Any]) -> None:
        """Process the metadata of a reply that counts."""
        try:
            self.on_metadata(seat, metadata)
        except ValueError as error:
            raise RefusedError(f"its traffic counters do not fit: {error}") from None

    def _on_rejected(self, member: Member, error: Exception) -> None:
        request = self._request
        if request is None:
            return
        member.on(MemberEvent.REJECTED)
        if isinstance(error, MemberFailedError):
            request.failed.add(member.seat)
            self._informed.discard(member.seat)  # it may have lost the totals
            if request.kind in _NEEDED:  # a run does not depend on its scores
                self._failing.add(member.seat)
                if request.messages.keys() <= request.failed and self._all_failing():
                    raise AllMembersFailedError(str(error)) from None

    def _all_failing(self) -> bool:
        """Whether all members that are present fail; while one does not, failures of others end no run."""
        now = self.clock()
        return all(member.seat in self._failing for member in self.members if member.present(now))

"""The requests of a server to its members: training steps, scores, the end; each waits for a quorum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sfedhp.core.types import Clock
from sfedhp.data.totals import Totals
from sfedhp.deploy.messaging.exchange import POLL, MemberExchange
from sfedhp.deploy.messaging.metadata import scores_of
from sfedhp.deploy.messaging.payload import pack_rows
from sfedhp.deploy.messaging.protocol import START, Envelope, Kind
from sfedhp.deploy.messaging.request import AllMembersFailedError, Request
from sfedhp.engine.roles import Reply
from sfedhp.wire.link import WireOptions


@dataclass
class MemberGroup(MemberExchange):
    """The members of a server; the `Members` of `sfedhp.engine.roles`, on other machines."""

    def request(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Reply | None]:
        """Request a training step: each member gets its row of the messages; None if no reply came."""
        seats = [seat for seat in range(len(self)) if asked is None or bool(asked[seat])]
        rows = messages if asked is None else messages[seats]
        size = len(self.model)
        packed = dict(zip(seats, pack_rows(rows, size, self.link), strict=True))
        sent = {seat: held[:size] for seat, (_, held) in packed.items()}
        self._late.opened(int(clock.cloud_round), sent)

        def read(seat: int, envelope: Envelope) -> Reply:
            return self._read_reply(seat, envelope, sent[seat])

        nonzeros = {seat: int((held[:size] != 0).sum()) for seat, (_, held) in packed.items()}
        parts = {seat: pieces for seat, (pieces, _) in packed.items()}
        request = Request.of_parts(
            Kind.WORK,
            self.run,
            self.config,
            clock,
            parts,
            read,
            nonzeros=nonzeros,
            metadata=self.notice(),
            more=self._totals_for(parts),
        )
        found = self._wait(request, self.quorum, self.timeout)
        return self._in_order(self._late.taken(int(clock.cloud_round)) | found, seats)

    def _in_order(self, replies: Mapping[int, Reply], seats: Sequence[int]) -> list[Reply | None]:
        """The replies by seat; a requested one that did not come is None, and counted as missing."""
        for seat in seats:
            if seat not in replies:
                self.traffic.missing[self.names[seat]] += 1
        return [replies.get(seat) for seat in range(len(self))]

    def score(
        self, models: Mapping[str, Tensor], same: Mapping[str, str], clock: Clock, timeout: float
    ) -> dict[int, dict[str, Any]]:
        """Request an evaluation of models on the members' own rows.

        Args:
            models: (members, d + s) each, by name.
            same: names of models that are equal to others, and which.
            clock: after which round.
            timeout: how long to wait; the run does not depend on the scores, so no quorum is needed.

        Returns:
            The scores of each member that replied, by seat.
        """
        behind = len(self.statistics)
        rows = zip(
            *(pack_rows(model, model.shape[-1] - behind, WireOptions()) for model in models.values()),
            strict=True,
        )
        parts = {seat: tuple(part for pieces, _ in row for part in pieces) for seat, row in enumerate(rows)}
        if self.late.quorum:  # does not wait for members that work on an older request
            parts = {seat: part for seat, part in parts.items() if self.members[seat].free}
        metadata = {"models": list(models), "same": dict(same)}

        def read(seat: int, envelope: Envelope) -> dict[str, Any]:
            self._check_result(seat, envelope.metadata)
            scores = scores_of(envelope.metadata)
            self.accept.scores(self.members[seat], scores)
            self._pass_on(seat, envelope.metadata)
            return scores

        more = self._totals_for(parts)
        request = Request.of_parts(
            Kind.SCORE, self.run, self.config, clock, parts, read, metadata=metadata, more=more
        )
        replies = self._wait(request, 0, timeout)
        return dict(sorted(replies.items()))  # sums over it must not depend on the order of replies

    def sum_up(self) -> Totals:
        """Request the totals of the members' training rows, and add them.

        Raises:
            AllMembersFailedError: no member has any.
        """
        nothing: dict[int, tuple[bytes, ...]] = dict.fromkeys(range(len(self)), ())

        def read(seat: int, envelope: Envelope) -> Totals:
            self._check_result(seat, envelope.metadata)
            totals = self.accept.totals(self.members[seat], envelope.metadata.get("totals"))
            self._pass_on(seat, envelope.metadata)
            return totals

        request = Request.of_parts(Kind.SUM, self.run, self.config, START, nothing, read)
        found = self._wait(request, self.quorum, self.timeout)
        if not found:
            raise AllMembersFailedError("no member reported its totals")
        if missing := [member.name for member in self.members if member.seat not in found]:
            self.log.write("unsummed", missing=missing)
        few = _few([totals.pixels for totals in found.values()])
        for seat in [seat for seat, totals in found.items() if totals.pixels == few]:
            kind, others = ("uint8", "floats") if few else ("floats", "uint8")
            self._rejections.note(
                f"its inputs are {kind}, and those of most others {others}", self.names[seat]
            )
            del found[seat]
        try:
            return Totals.add([found[seat] for seat in sorted(found)])
        except ValueError as error:
            raise AllMembersFailedError(str(error)) from None

    def farewell(self, timeout: float) -> None:
        """Tell all members that the run is over, and wait until those that ever came have received it."""
        nothing: dict[int, tuple[bytes, ...]] = dict.fromkeys(range(len(self)), ())
        request = Request.of_parts(Kind.FAREWELL, self.run, self.config, Clock(0), nothing, lambda *_: True)
        self._open(request)
        for member in self.members:
            self._send(request, member)
        started = now = self.clock()
        while now - started < timeout:
            came = {member.seat for member in self.members if member.hello is not None}
            more_may_come = len(came) < len(self) and now - started < self.silent_seconds
            if not more_may_come and came <= request.replies.keys():
                break
            self._receive(POLL)
            now = self.clock()
        self._request = None
        for seat in request.replies:
            self.members[seat].heard_at = -math.inf  # it has ended
        self._rejections.write(now_all=True)


def _few(flags: Sequence[bool]) -> bool | None:
    """The value that fewer than half of the flags have; None if all are equal, or exactly half are true."""
    true = sum(flags)
    if true in (0, len(flags)) or 2 * true == len(flags):
        return None
    return 2 * true < len(flags)

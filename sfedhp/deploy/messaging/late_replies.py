"""Late replies: replies after the quorum count in a later round, with less weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from sfedhp.core.late import LateOptions, as_change_of, late_weight
from sfedhp.deploy.messaging.protocol import Envelope
from sfedhp.deploy.messaging.request import Request
from sfedhp.engine.roles import Reply

_ROUNDS: Final = 16  # that a reply may be late; what was sent in them is kept


class LateReplies:
    """A cloud's record of the last rounds, if it does not wait for all its edges."""

    def __init__(self, options: LateOptions):
        self._options = options
        self._sent: dict[int, dict[int, Tensor]] = {}  # what each seat received, by cloud round
        self._counted: dict[int, int] = {}  # by seat: the newest round whose reply was counted
        self._waiting: dict[int, tuple[int, Reply]] = {}  # round and reply, by seat
        self._needed = 0  # replies to the open request that end it

    def opened(self, cloud_round: int, sent: dict[int, Tensor]) -> None:
        """Remember what the cloud sends at the start of a round."""
        if self._options.quorum:
            last = max((each for each in self._sent if each < cloud_round), default=-1)
            idle = [seat for seat in sent if self._counted.get(seat, -1) >= last]
            self._needed = max(1, min(self._options.quorum, len(idle)))
            self._sent[cloud_round] = sent
            for old in [each for each in self._sent if each <= cloud_round - _ROUNDS]:
                del self._sent[old]
            self._waiting = {seat: late for seat, late in self._waiting.items() if late[0] in self._sent}

    def enough(self, replies: Mapping[int, Any]) -> bool:
        """Whether the round can end: a quorum replied to it, or all that are not busy with an earlier one."""
        return bool(self._options.quorum) and len(replies) >= self._needed

    def takes(self, seat: int, envelope: Envelope, request: Request | None) -> bool:
        """Whether a reply belongs to an earlier round that has ended, and still counts."""
        cloud_round = int(envelope.clock.cloud_round)
        if not self._options.quorum or not self._options.decay:
            return False
        if request is not None and envelope.clock == request.clock and seat in request.messages:
            return False
        known = seat in self._sent.get(cloud_round, {})
        return known and envelope.clock.edge_round == 0 and cloud_round > self._counted.get(seat, -1)

    def sent(self, seat: int, cloud_round: int) -> Tensor:
        """What a member received in a round, (d,)."""
        return self._sent[cloud_round][seat]

    def counted(self, seat: int, cloud_round: int) -> None:
        """Refuse older replies of this member from now on, and the same one again."""
        self._counted[seat] = max(cloud_round, self._counted.get(seat, -1))

    def add(self, seat: int, cloud_round: int, reply: Reply) -> None:
        """Keep a late reply for the round that is open, or for the next one."""
        self._waiting[seat] = (cloud_round, reply)

    def taken(self, cloud_round: int) -> dict[int, Reply]:
        """The late replies that count in a round, with what they weigh then."""
        found = {
            seat: self._aged(seat, sent_in, reply, cloud_round)
            for seat, (sent_in, reply) in self._waiting.items()
        }
        self._waiting.clear()
        return found

    def _aged(self, seat: int, sent_in: int, reply: Reply, cloud_round: int) -> Reply:
        """The reply as a change of what is sent now, with less weight."""
        weight = late_weight(reply.weight, self._options.decay, cloud_round - sent_in)
        then, now = self._sent[sent_in][seat], self._sent[cloud_round][seat]
        upload = reply.upload.clone()
        upload[: len(now)] = as_change_of(now, upload[: len(now)], then)
        return Reply(upload, weight)

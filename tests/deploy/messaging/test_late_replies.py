"""Replies that come after the quorum."""

from __future__ import annotations

import pytest
import torch

from sfedhp.core.late import LateOptions
from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.payload import pack
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, decode_message, encode_message
from sfedhp.wire.link import WireOptions
from tests.support.deploy_time import TimedInbox, Timeline
from tests.support.member_groups import CONFIG, RUN, member_group

SIZE = 3
MODEL = torch.arange(1.0, SIZE + 1)


class Wire:
    """The server's transport; each member replies after its own time."""

    def __init__(self, seconds):
        self.time = Timeline()
        self.inbox = TimedInbox(self.time)
        self.seconds = seconds
        self.busy_until = dict.fromkeys(seconds, 0.0)
        self.clocks = []

    def send(self, to, data):
        request = decode_message(data)
        if request.kind is not Kind.WORK or self.time() < self.busy_until[to]:
            return
        seat = request.member
        self.busy_until[to] = self.time() + self.seconds[to]
        self.time.after(self.seconds[to], self.say, to, reply(seat, request.clock))
        self.time.after(self.seconds[to] + 0.01, self.say, to, hello(seat))

    def say(self, name, message):
        self.inbox.put((name, encode_message(message)))


def hello(seat):
    return Envelope(Kind.HELLO, NO_RUN, CONFIG, seat)


def reply(seat, clock, value=1.0):
    parts, _ = pack(MODEL * value, SIZE, WireOptions())
    return Envelope(Kind.REPLY, RUN, CONFIG, seat, clock, 4.0, parts=parts)


@pytest.fixture(params=[0.5])
def made(request, tmp_path):
    """A group of two members; the parameter is `late.decay`."""
    wire = Wire({"quick": 1.0, "slow": 2.5})
    late = LateOptions(quorum=1, decay=request.param)
    group = member_group(
        wire, ["quick", "slow"], MODEL, tmp_path, timeout=60.0, silent_seconds=60.0, late=late
    )
    for seat, name in enumerate(group.names):
        wire.say(name, hello(seat))
    group.listen(0.05)
    return wire, group


def weights(group, turn):
    replies = group.request(MODEL.expand(2, SIZE), Clock(turn), None)
    return [None if reply is None else reply.weight for reply in replies]


def test_a_late_reply_counts_once_with_less_weight(made):
    wire, group = made
    started = wire.time()
    assert weights(group, 0) == [4.0, None]
    assert wire.time() - started < 1.2, "the quorum ends the round"
    assert weights(group, 1) == [4.0, None]
    assert weights(group, 2) == [4.0, 1.0], "two rounds late: a quarter of its weight"
    assert weights(group, 3)[0] == 4.0


def test_an_old_reply_again_and_one_of_an_unknown_round_do_not_count(made):
    wire, group = made
    for turn in range(3):
        weights(group, turn)
    for wrong in (Clock(0), Clock(77), Clock(2, 1)):
        wire.say("slow", reply(1, wrong))
    assert weights(group, 3)[1] is None


def test_a_reply_between_two_rounds_waits_for_the_next(made):
    _, group = made
    weights(group, 0)
    group.listen(3.0)
    assert weights(group, 1) == [4.0, 2.0]


@pytest.mark.parametrize("made", [0.0], indirect=True)
def test_a_late_reply_is_lost_where_nothing_is_left_of_its_weight(made):
    _, group = made
    assert [weights(group, turn)[1] for turn in range(4)] == [None] * 4


def test_a_late_reply_is_a_change_of_the_model_of_now(made):
    _, group = made
    sent = MODEL.expand(2, SIZE)
    group.request(sent, Clock(0), None)
    group.request(sent + 10, Clock(1), None)
    quick, slow = group.request(sent + 20, Clock(2), None)
    assert torch.equal(quick.upload, MODEL), "in time: the model itself"
    assert torch.equal(slow.upload, MODEL + 20), "late: what it changed, nothing, of the model of now"

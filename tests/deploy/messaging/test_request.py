"""When a heartbeat shows that a member has to be sent the open request."""

from __future__ import annotations

import pytest

from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.member import Member, MemberState
from sfedhp.deploy.messaging.protocol import Kind
from sfedhp.deploy.messaging.request import Request, resend_after

RUN, NOW, SIZE = "a" * 16, 50.0, 100
THIS, OLDER = [RUN, int(Kind.WORK), 3, 1], [RUN, int(Kind.WORK), 3, 0]
AFTER = resend_after(SIZE)  # about a second
JUST, LONG_AGO = NOW - 0.9 * AFTER, NOW - 1.1 * AFTER

# what the heartbeat says; when the request was last sent; whether it must be sent now
CASES = {
    "has it and works": ({"seen": THIS, "idle": None}, LONG_AGO, False),
    "answered just now": ({"seen": THIS, "idle": 1.9 * AFTER}, LONG_AGO, False),
    "answered long ago": ({"seen": THIS, "idle": 2.1 * AFTER}, LONG_AGO, True),
    "answered long ago, sent again just now": ({"seen": THIS, "idle": 2.1 * AFTER}, JUST, False),
    "has nothing, never sent": ({"seen": None}, None, True),
    "has nothing, sent just now": ({"seen": None}, JUST, False),
    "has nothing, sent long ago": ({"seen": None}, LONG_AGO, True),
    "idle after an older one, sent just now": ({"seen": OLDER, "idle": 9.0}, JUST, False),
    "idle after an older one, sent long ago": ({"seen": OLDER, "idle": 9.0}, LONG_AGO, True),
    "works on an older one, never sent": ({"seen": OLDER, "idle": None}, None, True),
    "works on an older one, sent long ago": ({"seen": OLDER, "idle": None}, LONG_AGO, False),
    "drops an older one, sent just now": ({"seen": OLDER, "idle": None, "yields": True}, JUST, False),
    "drops an older one, sent long ago": ({"seen": OLDER, "idle": None, "yields": True}, LONG_AGO, True),
}


def opened(sent_at=None):
    request = Request(Kind.WORK, RUN, Clock(3, 1), {0: bytes(SIZE)}, {}, lambda seat, envelope: None)
    if sent_at is not None:
        request.sent_at[0] = request.started_at[0] = sent_at
    return request


def member(hello, state=MemberState.IDLE):
    return Member("m", 0, NOW, 8.0, hello, state)


@pytest.mark.parametrize(("hello", "sent_at", "must"), CASES.values(), ids=CASES)
def test_the_resend_rule(hello, sent_at, must):
    assert opened(sent_at).must_send(member(hello), False, NOW) is must


def test_a_restarted_member_is_sent_it_at_once_however_large():
    request = opened(NOW - 1.1)
    request.messages[0] = bytes(10**8)
    assert request.must_send(member({"seen": None}), True, NOW)
    assert not request.must_send(member({"seen": None}), False, NOW), "it may be on its way"


def test_who_says_all_the_time_that_it_was_restarted_is_not_sent_a_model_each_time():
    assert not opened(NOW - 0.5).must_send(member({"seen": None}), True, NOW)


def test_a_late_member_is_sent_nothing_while_it_works():
    busy = {"seen": OLDER, "idle": None}
    assert not opened().must_send(member(busy, MemberState.LATE), False, NOW)
    assert opened().must_send(member({"seen": OLDER, "idle": 0.1}, MemberState.LATE), False, NOW)


def test_who_failed_is_not_asked_the_same_again():
    request = opened(LONG_AGO)
    request.failed.add(0)
    assert not request.must_send(member({"seen": THIS, "idle": 9.0}), False, NOW)


def test_time_runs_from_the_first_sending():
    request = opened(NOW - 3.0)
    assert not request.timed_out(0, NOW, 3.1)
    assert request.timed_out(0, NOW, 3.0)
    assert not opened().timed_out(0, NOW, 0.1), "not before it has the request"

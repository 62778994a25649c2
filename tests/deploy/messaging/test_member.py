"""The states of a member, event by event."""

from __future__ import annotations

import math

import pytest

from sfedhp.deploy.messaging.member import TRANSITIONS, Member, MemberEvent, MemberState, states_of
from sfedhp.deploy.messaging.member import MemberEvent as E
from sfedhp.deploy.messaging.member import MemberState as S

# What becomes of each state by each event; "=" where it stays.
COLUMNS = [S.IDLE, S.WORKING, S.LATE, S.REFUSED, S.ANSWERED]
TABLE = {
    E.OPENED: ["=", S.IDLE, "=", S.IDLE, S.IDLE],
    E.SENT: [S.WORKING, "=", "=", "=", "="],
    E.TIMED_OUT: [S.LATE, S.LATE, "=", "=", "="],
    E.FREED: ["=", "=", S.IDLE, "=", "="],
    E.ACCEPTED: [S.ANSWERED, S.ANSWERED, "=", S.ANSWERED, "="],
    E.REJECTED: [S.REFUSED, S.REFUSED, "=", "=", "="],
}


def member(progress=S.IDLE, **hello):
    return Member("m", 0, 100.0, silent_seconds=5.0, hello=hello or None, progress=progress)


@pytest.mark.parametrize("event", MemberEvent)
def test_every_event_in_every_state(event):
    for before, after in zip(COLUMNS, TABLE[event], strict=True):
        found = member(before)
        found.on(event)
        assert found.progress is (before if after == "=" else after), before


def test_absence_is_no_step_of_the_machine():
    mentioned = {state for changes in TRANSITIONS.values() for pair in changes.items() for state in pair}
    assert mentioned == set(MemberState) - {S.ABSENT}


@pytest.mark.parametrize("progress", [S.IDLE, S.WORKING, S.LATE])
def test_a_silent_member_is_absent_and_what_it_was_when_it_is_heard_again(progress):
    found = member(progress)
    assert found.state(104.9) is progress
    assert found.state(105.0) is S.ABSENT
    found.heard_at = 105.0
    assert found.state(105.0) is progress


@pytest.mark.parametrize("progress", [S.REFUSED, S.ANSWERED])
def test_whose_reply_is_decided_stays_so_when_it_falls_silent(progress):
    assert member(progress).state(1e6) is progress


def test_only_a_heartbeat_makes_a_member_present():
    assert not member().present(100.0)
    assert member(seen=None).present(100.0)
    assert not member(seen=None).present(105.0)


def test_what_a_heartbeat_says():
    assert member().free
    assert member(seen=None).free
    working = member(seen=["a", 1, 2, 3], idle=None)
    assert working.seen == ["a", 1, 2, 3]
    assert not working.free
    assert not working.yields
    done = member(seen=["a", 1, 2, 3], idle=0.0, yields=True)
    assert (done.free, done.idle_seconds, done.yields) == (True, 0.0, True)


def test_states_are_said_with_the_seconds_of_silence():
    working, never_came = member(S.WORKING, seen=None), member(S.IDLE)
    assert states_of([working], 101.24) == {working.name: {"state": "working", "silent": 1.2}}
    assert states_of([working], 200.0)[working.name]["state"] == "absent"
    assert states_of([never_came], 100.0)[never_came.name]["state"] == "absent"
    working.heard_at = -math.inf
    assert states_of([working], 100.0)[working.name]["silent"] == 1e9  # JSON has no infinity

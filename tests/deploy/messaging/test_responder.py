"""A member's side of the post."""

from __future__ import annotations

import json
import queue
import time

import pytest

from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.protocol import Envelope, Kind, seal, unseal
from sfedhp.deploy.messaging.responder import Desk

RUN, CONFIG = "a" * 16, "b" * 16


class Wire:
    def __init__(self):
        self.inbox = queue.SimpleQueue()
        self.sent = []

    def send(self, to, data):
        self.sent.append((to, unseal(data)))


def question(turn=0, seat=3, **changes):
    values = {"kind": Kind.WORK, "run": RUN, "config": CONFIG, "member": seat, "clock": Clock(turn)}
    return Envelope(**(values | changes))


@pytest.fixture
def desk(tmp_path):
    return Desk(Wire(), 3, CONFIG, Journal(tmp_path, "client-0-3"), lambda: {"more": 1})


def test_the_newest_question_is_taken(desk):
    for turn in (1, 2, 3):
        desk.post.inbox.put(("server", seal(question(turn))))
    assert desk.take(1.0) == question(3)
    assert desk.take(0.01) is None


@pytest.mark.parametrize(
    ("sender", "data", "reason"),
    [
        ("client-0-1", seal(question()), "not come from the server"),
        ("server", seal(question(seat=1)), "for seat 1"),
        ("server", seal(question(config="c" * 16)), "config"),
        ("server", b"garbage", "no message"),
    ],
)
def test_what_is_not_for_this_member_is_refused_and_logged(desk, tmp_path, sender, data, reason):
    """Another member cannot pose as the server."""
    desk.post.inbox.put((sender, data))
    assert desk.take(0.01) is None
    (line,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert line["event"] == "refused"
    assert reason in line["reason"]


def test_a_member_says_what_it_works_on(desk, monkeypatch):
    monkeypatch.setattr("sfedhp.deploy.messaging.responder.BEAT", 0.02)
    desk.open()
    time.sleep(0.1)
    desk.took(question(4))
    time.sleep(0.1)
    desk.answer(Kind.REPLY, question(4), weight=2.0)
    time.sleep(0.1)
    desk.close()
    hellos = [envelope.facts for to, envelope in desk.post.sent if envelope.kind is Kind.HELLO]
    assert hellos[0] == {"seen": None, "idle": None, "more": 1}
    assert {"seen": [RUN, 1, 4, 0], "idle": None, "more": 1} in hellos
    assert hellos[-1]["idle"] > 0
    (reply,) = [envelope for _, envelope in desk.post.sent if envelope.kind is Kind.REPLY]
    assert (reply.run, reply.clock, reply.member, reply.weight) == (RUN, Clock(4), 3, 2.0)

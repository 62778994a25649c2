"""The member side of the protocol."""

from __future__ import annotations

import queue

import pytest

from sfedhp._version import __version__
from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.protocol import Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.responder import Responder
from tests.support.json_lines import json_lines
from tests.support.patient_clock import wait_for

RUN, CONFIG = "a" * 16, "b" * 16


class Wire:
    def __init__(self):
        self.inbox: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self.sent = []

    def send(self, to, data):
        self.sent.append((to, decode_message(data)))


def request(turn=0, seat=3, **changes):
    values = {"kind": Kind.WORK, "run": RUN, "config": CONFIG, "member": seat, "clock": Clock(turn)}
    return Envelope(**(values | changes))


@pytest.fixture
def responder(tmp_path):
    return Responder(Wire(), 3, CONFIG, EventLog(tmp_path, "client-0-3"), lambda: {"more": 1})


def test_the_newest_request_is_taken(responder):
    for turn in (1, 2, 3):
        responder.transport.inbox.put(("server", encode_message(request(turn))))
    assert responder.receive(1.0) == request(3)
    assert responder.receive(0.01) is None


@pytest.mark.parametrize(
    ("sender", "data", "reason"),
    [
        ("client-0-1", encode_message(request()), "not come from the server"),
        ("server", encode_message(request(seat=1)), "for seat 1"),
        ("server", encode_message(request(config="c" * 16)), "config"),
        ("server", b"garbage", "not a message"),
    ],
)
def test_what_is_not_for_this_member_is_refused_and_logged(responder, tmp_path, sender, data, reason):
    """Another member cannot pose as the server."""
    responder.transport.inbox.put((sender, data))
    assert responder.receive(0.01) is None
    (line,) = json_lines(tmp_path / "log.jsonl")
    assert line["event"] == "refused"
    assert reason in line["reason"]


def test_a_member_says_what_it_works_on(responder):
    def hellos():
        return [envelope.metadata for _, envelope in responder.transport.sent if envelope.kind is Kind.HELLO]

    responder.heartbeat = 0.02
    responder.start()
    wait_for(hellos)
    assert hellos()[0] == {"seen": None, "idle": None, "version": __version__, "more": 1}
    responder.acknowledge(request(4))
    works = {"seen": [RUN, 1, 4, 0], "idle": None, "version": __version__, "more": 1}
    wait_for(lambda: hellos()[-1] == works)
    responder.reply(Kind.REPLY, request(4), weight=2.0)
    wait_for(lambda: (hellos()[-1]["idle"] or 0.0) > 0)
    responder.stop()
    (reply,) = [envelope for _, envelope in responder.transport.sent if envelope.kind is Kind.REPLY]
    assert (reply.run, reply.clock, reply.member, reply.weight) == (RUN, Clock(4), 3, 2.0)

"""What a server does with members that are late, double, wrong, silent, or come back."""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import replace

import pytest
import torch

from sfedhp.core.errors import InputError
from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.gather import Circle
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, pack, seal, unseal
from sfedhp.wire import encode
from sfedhp.wire.link import WireOptions

RUN, CONFIG, SIZE = "a" * 16, "b" * 16, 5
MODEL = torch.arange(1.0, SIZE + 1)
NAMES = ["first", "second"]
NOW = Clock(3, 1)
COUNTS = {"test": {"gm": [1, 2, 0.5]}}


class Wire:
    """The server's end of the post; `heard` gets what is sent, and members speak through `say`."""

    def __init__(self):
        self.inbox = queue.SimpleQueue()
        self.sent = []
        self.members = {}

    def send(self, to, data):
        self.sent.append((to, unseal(data)))
        if to in self.members:
            threading.Thread(target=self.members[to], args=(unseal(data),), daemon=True).start()

    def say(self, name, *messages):
        for message in messages:
            self.inbox.put((name, message if isinstance(message, bytes) else seal(message)))


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def circle(wire, tmp_path):
    plain = WireOptions()
    found = Circle(
        wire,
        NAMES,
        RUN,
        CONFIG,
        MODEL,
        MODEL[:0],
        plain,
        quorum=1,
        seconds=2.0,
        silent_seconds=1.0,
        journal=Journal(tmp_path, "server"),
    )
    wire.say("first", hello(0))
    wire.say("second", hello(1))
    found.attend(0.05)
    return found


def hello(seat, **facts):
    return Envelope(Kind.HELLO, NO_RUN, CONFIG, seat, facts=facts)


def reply(seat, value=1.0, weight=2.0, clock=NOW, **changes):
    parts, _ = pack(MODEL * value, SIZE, WireOptions())
    return replace(Envelope(Kind.REPLY, RUN, CONFIG, seat, clock, weight, parts=parts), **changes)


def answers(wire, seat, *messages, after=0.0):
    """The member that answers a question with these messages."""

    def member(question):
        time.sleep(after)
        wire.say(NAMES[seat], *messages)

    wire.members[NAMES[seat]] = member


def ask(circle, clock=NOW, asked=None):
    return circle.request(MODEL.expand(2, SIZE), clock, asked)


def refusals(tmp_path):
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    return [(line["member"], line["reason"]) for line in lines if line["event"] == "refused"]


def test_all_are_asked_at_once_and_answer_in_any_order(circle, wire):
    answers(wire, 0, reply(0), after=0.2)
    answers(wire, 1, reply(1, 2.0, 5.0))
    first, second = ask(circle)
    assert torch.equal(first.upload, MODEL)
    assert torch.equal(second.upload, 2 * MODEL)
    assert (first.weight, second.weight) == (2.0, 5.0)
    assert circle.close_books().missing == {}


NOT_FINITE = encode(MODEL)[:-4] + b"\x00\x00\xc0\x7f"
WRONG = {
    "garbage": b"garbage" * 20,
    "cut": seal(reply(1))[:-3],
    "another config": seal(reply(1, config="c" * 16)),
    "another seat": seal(reply(0)),
    "no weight": seal(reply(1, weight=0.0)),
    "a weight that is not a number": seal(reply(1, weight=float("nan"))),
    "a model of another size": seal(reply(1, parts=(encode(MODEL[:3]),))),
    "a model of another type": seal(reply(1, parts=(encode(MODEL.double()),))),
    "a tail too many": seal(reply(1, parts=(encode(MODEL), encode(MODEL)))),
    "values that are not finite": seal(reply(1, parts=(NOT_FINITE,))),
    "what it has to say of itself": seal(reply(1, weight=0.0, facts={"trouble": "I diverged"}, parts=())),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_a_wrong_reply_is_refused_logged_and_weighs_nothing(circle, wire, tmp_path, message):
    answers(wire, 0, reply(0))
    answers(wire, 1, message)
    began = time.monotonic()
    first, second = ask(circle)
    assert torch.equal(first.upload, MODEL)
    assert second is None
    assert [member for member, _ in refusals(tmp_path)] == ["second"]
    assert circle.close_books().missing == {"second": 1}
    assert time.monotonic() - began < 1.0, "a member whose reply was refused is not waited for"


def test_a_model_with_nan_cannot_be_sent_nor_read():
    with pytest.raises(InputError):
        pack(MODEL * torch.nan, SIZE, WireOptions())


@pytest.mark.parametrize(
    "wrong", [reply(1, clock=Clock(3, 0)), reply(1, clock=Clock(2, 1)), reply(1, run="d" * 16)]
)
def test_a_reply_to_another_round_is_refused_and_the_right_one_still_counts(circle, wire, tmp_path, wrong):
    answers(wire, 0, reply(0))
    answers(wire, 1, wrong, reply(1))
    first, second = ask(circle)
    assert first is not None
    assert second is not None
    assert len(refusals(tmp_path)) == 1


def test_a_second_reply_is_refused(circle, wire, tmp_path):
    answers(wire, 0, reply(0, 1.0), reply(0, 7.0))
    answers(wire, 1, reply(1), after=0.3)
    first, _ = ask(circle)
    assert torch.equal(first.upload, MODEL)
    assert [member for member, _ in refusals(tmp_path)] == ["first"]


def test_who_has_no_seat_is_not_heard(circle, wire, tmp_path):
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1))
    wire.say("stranger", reply(1, 9.0))
    assert torch.equal(ask(circle)[1].upload, MODEL)
    assert refusals(tmp_path) == [("stranger", "it has no seat here")]


def test_a_late_member_weighs_nothing_and_is_not_waited_for_until_it_is_free(circle, wire):
    circle.seconds = 0.4
    answers(wire, 0, reply(0))
    wire.say("second", hello(1, seen=None))
    began = time.monotonic()
    keep_alive = threading.Timer(0.2, lambda: wire.say("second", hello(1, seen=[RUN, 1, 3, 1])))
    keep_alive.start()
    assert ask(circle)[1] is None
    assert 0.35 < time.monotonic() - began < 1.5, "the time limit decides"
    later = Clock(3, 2)
    answers(wire, 0, reply(0, clock=later))
    began = time.monotonic()
    assert ask(circle, later)[1] is None
    assert time.monotonic() - began < 0.3, "who was late is not waited for again"
    # Its late answer shows that it is free: it counts in the next round.
    wire.say("second", reply(1))
    answers(wire, 0, reply(0, clock=Clock(3, 3)))
    answers(wire, 1, reply(1, clock=Clock(3, 3)), after=0.2)
    wire.say("second", hello(1))
    circle.attend(0.05)
    assert ask(circle, Clock(3, 3))[1] is not None


def test_a_silent_member_is_taken_for_absent_and_comes_back(circle, wire):
    answers(wire, 0, reply(0))
    began = time.monotonic()
    assert ask(circle)[1] is None
    assert 0.8 < time.monotonic() - began < 1.8, "it is waited for as long as it may be silent"
    assert circle.present()["second"] is False
    answers(wire, 0, reply(0))
    wire.say("first", hello(0))
    circle.attend(0.05)
    sent = len(wire.sent)
    began = time.monotonic()
    assert ask(circle)[1] is None
    assert time.monotonic() - began < 0.5
    assert {name for name, _ in wire.sent[sent:]} == {"first"}, "nothing is sent to who is not there"
    # Its hello in the middle of a round is enough to be asked.
    answers(wire, 0, reply(0), after=0.3)
    answers(wire, 1, reply(1))
    wire.say("first", hello(0))
    wire.say("second", hello(1))
    assert ask(circle)[1] is not None


def test_never_a_round_on_no_replies(circle, wire):
    circle.seconds = 0.2
    threading.Timer(1.6, lambda: wire.say("first", hello(0))).start()
    threading.Timer(1.7, lambda: wire.say("first", reply(0))).start()
    began = time.monotonic()
    first, second = ask(circle)
    assert first is not None
    assert second is None
    assert time.monotonic() - began > 1.5, "long after the limit it still waits for somebody"


def test_a_quorum_is_waited_for_beyond_the_limit(circle, wire):
    circle.seconds, circle.quorum = 0.2, 2
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1), after=0.6)
    assert all(ask(circle))


def test_a_question_or_an_answer_that_was_lost_is_sent_again(circle, wire):
    circle.seconds, circle.silent_seconds = 10.0, 8.0
    asked = []

    def forgetful(question):
        asked.append(question)
        if len(asked) == 3:
            wire.say("second", reply(1))

    wire.members["second"] = forgetful
    answers(wire, 0, reply(0))
    seen = [RUN, int(Kind.WORK), *NOW]
    for when, word in (
        (0.3, hello(1)),  # too early to say it was lost
        (1.2, hello(1)),
        (2.4, hello(1, seen=seen, idle=0.1)),  # its answer may be on its way
        (3.4, hello(1, seen=seen, idle=5.0)),
    ):
        threading.Timer(when, wire.say, ("second", word)).start()
    assert ask(circle)[1] is not None
    assert len(asked) == 3


def test_a_new_run_waits_for_everybody_to_come_up(circle, wire, tmp_path):
    fresh = replace(circle, facts={}, fresh_until=time.monotonic() + 5.0, seconds=0.1)
    wire.say("first", hello(0))
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1))
    threading.Timer(1.5, wire.say, ("second", hello(1))).start()
    assert all(fresh.request(MODEL.expand(2, SIZE), NOW, None))


def test_only_those_drawn_are_asked(circle, wire):
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1))
    found = ask(circle, asked=torch.tensor([False, True]))
    assert found[0] is None
    assert found[1] is not None
    assert {name for name, _ in wire.sent} == {"second"}
    assert circle.close_books().missing == {}


def test_a_turn_can_be_given_up(circle, wire):
    def stop():
        raise InterruptedError

    circle.look = stop
    with pytest.raises(InterruptedError):
        ask(circle)


def test_scores_and_farewell_need_nobody(circle, wire):
    """A run does not depend on its figures, nor its end on who hears of it."""
    models = {"next": MODEL.expand(2, SIZE)}
    answers(wire, 0, Envelope(Kind.SCORES, RUN, CONFIG, 0, NOW, facts=COUNTS))
    assert circle.score(models, {"gm": "next"}, NOW, 0.3) == {0: COUNTS}
    question = next(envelope for name, envelope in wire.sent if name == "first")
    assert question.facts == {"models": ["next"], "same": {"gm": "next"}}
    answers(wire, 0, Envelope(Kind.BYE, RUN, CONFIG, 0))
    circle.farewell(0.3)
    books = circle.close_books()
    assert books.entry("score_down").messages.tolist() == [1, 1]
    assert books.entry("down").bytes.sum() == 0

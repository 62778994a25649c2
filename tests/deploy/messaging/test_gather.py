"""What a server does with members that are late, double, wrong, silent, or come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sfedhp.core.errors import InputError
from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.payload import pack
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, decode_message, encode_message
from sfedhp.wire import encode
from sfedhp.wire.link import WireOptions
from tests.support.deploy_time import TimedInbox, Timeline
from tests.support.json_lines import json_lines
from tests.support.member_groups import CONFIG, RUN, member_group

SIZE = 5
MODEL = torch.arange(1.0, SIZE + 1)
NAMES = ["first", "second"]
NOW = Clock(3, 1)
COUNTS = {"test": {"gm": [1, 2, 0.5]}}


class Wire:
    """The server's transport; members get what is sent, and speak through `say`."""

    def __init__(self):
        self.time = Timeline()
        self.inbox = TimedInbox(self.time)
        self.sent = []
        self.members = {}

    def send(self, to, data):
        self.sent.append((to, decode_message(data)))
        if to in self.members:
            self.members[to](decode_message(data))

    def say(self, name, *messages):
        for message in messages:
            self.inbox.put((name, message if isinstance(message, bytes) else encode_message(message)))


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def group(wire, tmp_path):
    found = member_group(wire, NAMES, MODEL, tmp_path, timeout=2.0, silent_seconds=1.0)
    wire.say("first", hello(0))
    wire.say("second", hello(1))
    found.listen(0.05)
    return found


def hello(seat, **metadata):
    return Envelope(Kind.HELLO, NO_RUN, CONFIG, seat, metadata=metadata)


def reply(seat, value=1.0, weight=2.0, clock=NOW, **changes):
    parts, _ = pack(MODEL * value, SIZE, WireOptions())
    return replace(Envelope(Kind.REPLY, RUN, CONFIG, seat, clock, weight, parts=parts), **changes)


def answers(wire, seat, *messages, after=0.0):
    """The member that answers a request with these messages."""

    wire.members[NAMES[seat]] = lambda request: wire.time.after(after, wire.say, NAMES[seat], *messages)


def ask(group, clock=NOW, asked=None):
    return group.request(MODEL.expand(2, SIZE), clock, asked)


def refusals(tmp_path):
    lines = json_lines(tmp_path / "log.jsonl")
    return [(line["member"], line["reason"]) for line in lines if line["event"] == "refused"]


def test_all_are_asked_at_once_and_answer_in_any_order(group, wire):
    answers(wire, 0, reply(0), after=0.2)
    answers(wire, 1, reply(1, 2.0, 5.0))
    first, second = ask(group)
    assert torch.equal(first.upload, MODEL)
    assert torch.equal(second.upload, 2 * MODEL)
    assert (first.weight, second.weight) == (2.0, 5.0)
    assert group.take_traffic().missing == {}


NOT_FINITE = encode(MODEL)[:-4] + b"\x00\x00\xc0\x7f"
WRONG = {
    "garbage": b"garbage" * 20,
    "cut": encode_message(reply(1))[:-3],
    "another config": encode_message(reply(1, config="c" * 16)),
    "another seat": encode_message(reply(0)),
    "no weight": encode_message(reply(1, weight=0.0)),
    "a weight that is not a number": encode_message(reply(1, weight=float("nan"))),
    "a model of another size": encode_message(reply(1, parts=(encode(MODEL[:3]),))),
    "a model of another type": encode_message(reply(1, parts=(encode(MODEL.double()),))),
    "statistics too many": encode_message(reply(1, parts=(encode(MODEL), encode(MODEL)))),
    "values that are not finite": encode_message(reply(1, parts=(NOT_FINITE,))),
    "what it has to say of itself": encode_message(
        reply(1, weight=0.0, metadata={"trouble": "I diverged"}, parts=())
    ),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_a_wrong_reply_is_refused_logged_and_weighs_nothing(group, wire, tmp_path, message):
    answers(wire, 0, reply(0))
    answers(wire, 1, message)
    started = wire.time()
    first, second = ask(group)
    assert torch.equal(first.upload, MODEL)
    assert second is None
    assert [member for member, _ in refusals(tmp_path)] == ["second"]
    assert group.take_traffic().missing == {"second": 1}
    assert wire.time() - started < 1.0, "a member whose reply was refused is not waited for"


def test_a_model_with_nan_cannot_be_sent_nor_read():
    with pytest.raises(InputError):
        pack(MODEL * torch.nan, SIZE, WireOptions())


@pytest.mark.parametrize(
    "wrong", [reply(1, clock=Clock(3, 0)), reply(1, clock=Clock(2, 1)), reply(1, run="d" * 16)]
)
def test_a_reply_to_another_round_is_refused_and_the_right_one_still_counts(group, wire, tmp_path, wrong):
    answers(wire, 0, reply(0))
    answers(wire, 1, wrong, reply(1))
    first, second = ask(group)
    assert first is not None
    assert second is not None
    assert len(refusals(tmp_path)) == 1


def test_a_second_reply_is_refused(group, wire, tmp_path):
    answers(wire, 0, reply(0, 1.0), reply(0, 7.0))
    answers(wire, 1, reply(1), after=0.3)
    first, _ = ask(group)
    assert torch.equal(first.upload, MODEL)
    assert [member for member, _ in refusals(tmp_path)] == ["first"]


def test_who_has_no_seat_is_not_heard(group, wire, tmp_path):
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1))
    wire.say("stranger", reply(1, 9.0))
    assert torch.equal(ask(group)[1].upload, MODEL)
    assert refusals(tmp_path) == [("stranger", "it is not a member of this server")]


def test_a_late_member_weighs_nothing_and_is_not_waited_for_until_it_is_free(group, wire):
    group.timeout = 0.4
    answers(wire, 0, reply(0))
    wire.say("second", hello(1, seen=None))
    started = wire.time()
    wire.time.after(0.2, wire.say, "second", hello(1, seen=[RUN, 1, 3, 1]))
    assert ask(group)[1] is None
    assert 0.35 < wire.time() - started < 1.5, "the time limit decides"
    later = Clock(3, 2)
    answers(wire, 0, reply(0, clock=later))
    started = wire.time()
    assert ask(group, later)[1] is None
    assert wire.time() - started < 0.3, "who was late is not waited for again"
    # Its late answer shows that it is free: it counts in the next round.
    wire.say("second", reply(1))
    answers(wire, 0, reply(0, clock=Clock(3, 3)))
    answers(wire, 1, reply(1, clock=Clock(3, 3)), after=0.2)
    wire.say("second", hello(1))
    group.listen(0.05)
    assert ask(group, Clock(3, 3))[1] is not None


def test_a_silent_member_is_taken_for_absent_and_comes_back(group, wire):
    answers(wire, 0, reply(0))
    started = wire.time()
    assert ask(group)[1] is None
    assert 0.8 < wire.time() - started < 1.8, "it is waited for as long as it may be silent"
    assert group.present()["second"] is False
    answers(wire, 0, reply(0))
    wire.say("first", hello(0))
    group.listen(0.05)
    sent = len(wire.sent)
    started = wire.time()
    assert ask(group)[1] is None
    assert wire.time() - started < 0.5
    assert {name for name, _ in wire.sent[sent:]} == {"first"}, "nothing is sent to who is not there"
    # Its hello in the middle of a round is enough to be asked.
    answers(wire, 0, reply(0), after=0.3)
    answers(wire, 1, reply(1))
    wire.say("first", hello(0))
    wire.say("second", hello(1))
    assert ask(group)[1] is not None


def test_never_a_round_on_no_replies(group, wire):
    group.timeout = 0.2
    wire.time.after(1.6, lambda: wire.say("first", hello(0)))
    wire.time.after(1.7, lambda: wire.say("first", reply(0)))
    started = wire.time()
    first, second = ask(group)
    assert first is not None
    assert second is None
    assert wire.time() - started > 1.5, "long after the limit it still waits for somebody"


def test_a_quorum_is_waited_for_beyond_the_limit(group, wire):
    group.timeout, group.quorum = 0.2, 2
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1), after=0.6)
    assert all(ask(group))


def test_a_question_or_an_answer_that_was_lost_is_sent_again(group, wire):
    group = replace(group, timeout=10.0, silent_seconds=8.0)
    wire.say("first", hello(0))
    wire.say("second", hello(1))
    group.listen(0.05)
    asked = []

    def forgetful(request):
        asked.append(request)
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
        wire.time.after(when, wire.say, "second", word)
    assert ask(group)[1] is not None
    assert len(asked) == 3


def test_a_new_run_waits_for_everyone_to_come_up(group, wire, tmp_path):
    fresh = replace(group, start_until=wire.time() + 5.0, timeout=0.1)
    wire.say("first", hello(0))
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1))
    wire.time.after(1.5, wire.say, "second", hello(1))
    assert all(fresh.request(MODEL.expand(2, SIZE), NOW, None))


def test_only_those_drawn_are_asked(group, wire):
    answers(wire, 0, reply(0))
    answers(wire, 1, reply(1))
    found = ask(group, asked=torch.tensor([False, True]))
    assert found[0] is None
    assert found[1] is not None
    assert {name for name, _ in wire.sent} == {"second"}
    assert group.take_traffic().missing == {}


def test_a_turn_can_be_given_up(group, wire):
    def stop():
        raise InterruptedError

    group.on_wait = stop
    with pytest.raises(InterruptedError):
        ask(group)


def test_scores_and_farewell_need_no_one(group, wire):
    """A run does not depend on its figures, nor its end on who hears of it."""
    models = {"next": MODEL.expand(2, SIZE)}
    answers(wire, 0, Envelope(Kind.SCORES, RUN, CONFIG, 0, NOW, metadata=COUNTS))
    assert group.score(models, {"gm": "next"}, NOW, 0.3) == {0: COUNTS}
    request = next(envelope for name, envelope in wire.sent if name == "first")
    assert request.metadata == {"models": ["next"], "same": {"gm": "next"}}
    answers(wire, 0, Envelope(Kind.BYE, RUN, CONFIG, 0))
    group.farewell(0.3)
    traffic = group.take_traffic()
    assert traffic.entry("score_down").messages.tolist() == [1, 1]
    assert traffic.entry("down").bytes.sum() == 0

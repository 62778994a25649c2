"""For whom a server waits, whom it asks again, and what becomes of a turn in which no member can answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from sfedhp.algorithms import ALGORITHMS
from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.member import MemberState
from sfedhp.deploy.messaging.payload import pack
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.request import resend_after
from sfedhp.engine.roles import Cloud
from sfedhp.wire.link import WireOptions
from tests.support.deploy_time import TimedInbox, Timeline
from tests.support.json_lines import json_lines
from tests.support.member_groups import CONFIG, RUN, member_group

SIZE = 5
MODEL = torch.arange(1.0, SIZE + 1)
PARTS, _ = pack(MODEL, SIZE, WireOptions())
NAMES = ["m0", "m1", "m2", "m3"]


class Members:
    """The transport of a server, and its members: each says hello, and answers after some time."""

    def __init__(self, muted=(), **work):
        self.time = Timeline()
        self.inbox = TimedInbox(self.time)
        self.work = work  # seconds that each takes for an answer
        self.muted = set(muted)  # they say no hello
        self.asked: dict[str, list[Envelope]] = {name: [] for name in NAMES}  # the requests sent to each
        # What each has seen, and when it answered, None while it works.
        self.state: dict[str, tuple[list[Any] | None, float | None]] = dict.fromkeys(work, (None, None))
        self._waiting: dict[str, list[Envelope]] = {name: [] for name in work}
        self._busy = dict.fromkeys(work, False)
        for name in work:
            self._greet(name)

    def send(self, to, data):
        request = decode_message(data)
        self.asked[to].append(request)
        if to in self.work:
            self._waiting[to].append(request)
            self._labor(to)

    def _greet(self, name):
        seen, answered = self.state[name]
        idle = None if answered is None else self.time() - answered
        metadata = {"seen": seen, "idle": idle}
        if name not in self.muted:
            self.say(name, Envelope(Kind.HELLO, NO_RUN, CONFIG, NAMES.index(name), metadata=metadata))
        self.time.after(0.1, self._greet, name)

    def _labor(self, name):
        if self._waiting[name] and not self._busy[name]:
            request = self._waiting[name][-1]
            self._waiting[name].clear()
            self._busy[name] = True
            self.state[name] = ([request.run, int(request.kind), *request.clock], None)
            self.time.after(self.work[name], self._answer, name, request)

    def _answer(self, name, request):
        self.say(name, Envelope(Kind.REPLY, RUN, CONFIG, request.member, request.clock, 1.0, {}, PARTS))
        self.state[name] = ([request.run, int(request.kind), *request.clock], self.time())
        self._busy[name] = False
        self._labor(name)

    def say(self, name, envelope):
        self.inbox.put((name, encode_message(envelope)))


@pytest.fixture
def gather(tmp_path):
    """Members, and their server after their heartbeats."""

    def make(names=NAMES, quorum=1, timeout=2.0, silent=10.0, **work):
        members = Members(**work)
        group = member_group(
            members, names, MODEL, tmp_path, quorum=quorum, timeout=timeout, silent_seconds=silent
        )
        group.listen(0.5)
        return members, group

    return make


def timed(group, turn, asked=None):
    """How long a turn takes, and who answered in it."""
    started = group.clock()
    answers = group.request(MODEL.expand(len(group), SIZE), Clock(turn), asked)
    return group.clock() - started, [answer is not None for answer in answers]


def test_a_slow_member_is_waited_for_once_and_sent_nothing_while_it_works(gather):
    members, group = gather(NAMES[:2], timeout=5.0, m0=0.5, m1=200.0)
    took, who = timed(group, 0)
    assert took > 4.9
    for turn in (1, 2):
        took, who = timed(group, turn)
        assert took < 4.0, "the slow one is not waited for again"
        assert who == [True, False]
    assert [request.clock for request in members.asked["m1"]] == [Clock(0)]
    assert group.take_traffic().missing == {"m1": 3}


def test_a_slow_member_that_has_become_free_takes_part_in_the_turn_that_is_open(gather):
    members, group = gather(NAMES[:2], timeout=1.5, m0=0.1, m1=2.5)
    assert timed(group, 0)[1] == [True, False]
    members.work.update(m0=4.0, m1=0.1)
    members.muted.add("m1")
    group.timeout = 12.0
    took, who = timed(group, 1)
    assert who == [True, True], "its late answer shows that it is free"
    assert [request.clock for request in members.asked["m1"]] == [Clock(0), Clock(1)]
    assert took < 10.0


def test_a_late_answer_that_is_lost_shows_in_the_hello(gather):
    members, group = gather(NAMES[:2], timeout=1.0, m0=0.1, m1=200.0)
    timed(group, 0)
    members.work.update(m0=2.0)
    group.timeout = 4.0
    members.state["m1"] = (members.state["m1"][0], group.clock())  # it is done, and its server does not know
    timed(group, 1)
    assert [request.clock for request in members.asked["m1"]][:2] == [Clock(0), Clock(1)]


def test_who_works_on_what_a_server_asked_before_its_restart_gets_its_limit_and_no_more(gather):
    members, group = gather(NAMES[:2], timeout=0.5, m0=0.1)
    busy = Envelope(Kind.HELLO, NO_RUN, CONFIG, 1, metadata={"seen": ["d" * 16, 1, 9, 0], "idle": None})
    members.time.after(0.05, members.say, "m1", busy)
    members.work["m0"] = 0.3
    took, who = timed(group, 0)
    assert who == [True, False]
    assert took > 0.4
    assert len(members.asked["m1"]) == 1


def test_a_slow_member_that_leaves_its_work_for_a_new_question_gets_it_and_is_not_waited_for(gather):
    """So do edges: they are asked in every turn, and again where the request is lost."""
    members, group = gather(NAMES[:2], timeout=0.5, m0=0.1)
    busy = {"seen": [RUN, 1, 0, 0], "idle": None, "yields": True}
    word = Envelope(Kind.HELLO, NO_RUN, CONFIG, 1, metadata=busy)
    members.say("m1", word)
    assert timed(group, 0)[0] < 10.0, "its time runs also where it had the request before"
    members.work["m0"] = 4.0
    group.timeout = 12.0
    members.time.after(1.5, members.say, "m1", word)
    took, who = timed(group, 1)
    assert who == [True, False]
    assert took < 10.0
    assert [request.clock for request in members.asked["m1"]] == [Clock(1), Clock(1)]


def test_who_was_late_in_a_turn_that_was_given_up_is_not_waited_for_in_the_next(gather):
    members, group = gather(NAMES[:2], quorum=2, timeout=3.0, m0=0.1, m1=200.0)
    assert waits(group, None, 4.0)
    group.quorum, group.on_wait = 1, lambda: None
    took, who = timed(group, 1)
    assert who == [True, False]
    assert took < 2.5
    assert len(members.asked["m1"]) == 1


def test_patience_grows_with_the_message_and_a_restarted_member_is_not_kept_waiting(gather, monkeypatch):
    assert resend_after(0) == pytest.approx(1.0)
    assert 5.0 < resend_after(10**7) < 60.0
    members, group = gather(NAMES[:2], timeout=4.0, m0=0.1, m1=200.0)
    timed(group, 0)  # both have seen a request
    members.state["m1"] = (members.state["m1"][0], group.clock())
    members.work.update(m1=200.0)
    monkeypatch.setattr(
        "sfedhp.deploy.messaging.request._SLOW_LINK", 10.0
    )  # bytes/s: a message takes very long
    group.listen(0.3)
    group.members[1].progress = MemberState.IDLE
    members.time.after(1.0, members.state.update, {"m1": (None, None)})
    timed(group, 1)
    assert [request.clock for request in members.asked["m1"]] == [Clock(0), Clock(1), Clock(1)]


def drawn(*seats):
    return torch.tensor([seat in seats for seat in range(len(NAMES))])


def test_a_turn_in_which_none_of_those_drawn_is_there_passes_with_no_one(gather, tmp_path):
    _, group = gather(silent=1.0, m0=0.1, m1=0.1)
    took, who = timed(group, 0, drawn(2, 3))
    assert who == [False] * 4
    assert took < 20.0
    assert group.take_traffic().missing == {"m2": 1, "m3": 1}
    lines = json_lines(tmp_path / "log.jsonl")
    assert [line["missing"] for line in lines if line["event"] == "passed"] == [["m2", "m3"]]
    assert timed(group, 1, drawn(1, 2))[1] == [False, True, False, False]


def test_the_models_stay_when_a_turn_passes_with_no_one(gather):
    _, group = gather(silent=0.5, m0=0.1)
    draws = [drawn(2, 3), drawn(0, 1)]
    cloud = Cloud(ALGORITHMS["fedavg"](), group, MODEL * 3, MODEL[:0], lambda turn: draws[turn])
    kept, stepped = (cloud.algorithm.global_model(served.state) for served in cloud.run(2))
    assert kept is not None
    assert stepped is not None
    assert torch.equal(kept, MODEL * 3)
    assert torch.equal(stepped, MODEL)


def test_a_quorum_among_those_drawn_is_kept_also_then(gather):
    """With a quorum of two, one answer never makes a step: the turn passes when two are there to be drawn."""
    _, group = gather(quorum=2, silent=0.6, m0=0.1, m1=0.1)
    assert timed(group, 0, drawn(0, 2, 3))[1] == [False] * 4
    assert group.take_traffic().missing == {"m0": 1, "m2": 1, "m3": 1}


def waits(group, asked, seconds):
    """Whether a server still waits after this many seconds."""
    started = group.clock()

    def look():
        if group.clock() - started > seconds:
            raise InterruptedError

    try:
        group.on_wait = look
        group.request(MODEL.expand(len(group), SIZE), Clock(0), asked)
    except InterruptedError:
        return True
    return False


def test_where_no_one_is_there_or_fewer_than_the_quorum_a_server_waits(gather):
    _, nobody = gather(silent=0.3)
    assert waits(nobody, drawn(2, 3), 1.5)
    assert waits(nobody, None, 1.5)
    _, lonely = gather(quorum=2, silent=0.3, m0=0.1)
    assert waits(lonely, drawn(2, 3), 1.5)
    assert waits(lonely, None, 1.5)


def test_a_drawn_member_that_comes_while_the_turn_is_open_is_asked(gather):
    members, group = gather(silent=4.0, muted=["m2"], m0=0.1, m2=0.1)
    group.members[2].heard_at = group.members[3].heard_at = -math.inf  # they have long been silent
    members.time.after(0.5, members.muted.clear)
    assert timed(group, 0, drawn(2, 3))[1] == [False, False, True, False]


def test_trouble_with_scores_is_not_waited_for_and_ends_nothing(gather, tmp_path):
    members, group = gather(NAMES[:2], timeout=5.0, m0=0.1, m1=0.1)
    for name, seat in (("m0", 0), ("m1", 1)):
        members.work[name] = 100.0
        word = Envelope(Kind.SCORES, RUN, CONFIG, seat, Clock(4), metadata={"trouble": "no room"})
        members.time.after(0.2, members.say, name, word)
    started = group.clock()
    assert group.score({"next": MODEL.expand(2, SIZE)}, {}, Clock(4), 20.0) == {}
    assert group.clock() - started < 15.0
    lines = json_lines(tmp_path / "log.jsonl")
    assert [line["reason"] for line in lines if line["event"] == "refused"] == ["no room"] * 2


def test_who_is_in_trouble_is_not_asked_the_same_again(gather):
    members, group = gather(NAMES[:2], timeout=12.0, m0=5.0)
    seen = [RUN, int(Kind.WORK), 0, 0]
    trouble = Envelope(Kind.REPLY, RUN, CONFIG, 1, Clock(0), metadata={"trouble": "no room"})
    words = [Envelope(Kind.HELLO, NO_RUN, CONFIG, 1, metadata={"seen": None}), trouble]
    words.append(replace(words[0], metadata={"seen": seen, "idle": 2.4}))
    for when, word in zip((0.1, 0.3, 2.5), words, strict=True):
        members.time.after(when, members.say, "m1", word)
    assert timed(group, 0)[1] == [True, False]
    assert len(members.asked["m1"]) == 1

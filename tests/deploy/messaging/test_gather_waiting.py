"""For whom a server waits, whom it asks again, and what becomes of a turn in which nobody can answer."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from dataclasses import replace

import pytest
import torch

from sfedhp.algorithms import ALGORITHMS
from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.gather import Circle, patience
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, pack, seal, unseal
from sfedhp.engine.roles import Cloud
from sfedhp.wire.link import WireOptions

RUN, CONFIG, SIZE = "a" * 16, "b" * 16, 5
MODEL = torch.arange(1.0, SIZE + 1)
PARTS, _ = pack(MODEL, SIZE, WireOptions())
NAMES = ["m0", "m1", "m2", "m3"]


class Members:
    """The post of a server, and its members: each says hello, and answers after some time."""

    def __init__(self, muted=(), **work):
        self.inbox = queue.SimpleQueue()
        self.work = work  # seconds that each takes for an answer
        self.muted = set(muted)  # they say no hello
        self.asked = {name: [] for name in NAMES}  # the questions sent to each
        self.state = dict.fromkeys(work, (None, None))  # seen; when it answered, None while it works
        self._waiting = {name: queue.SimpleQueue() for name in work}
        self._over = threading.Event()
        for name in work:
            for target in (self._greet, self._labor):
                threading.Thread(target=target, args=(name,), daemon=True).start()

    def send(self, to, data):
        question = unseal(data)
        self.asked[to].append(question)
        if to in self.work:
            self._waiting[to].put(question)

    def close(self):
        self._over.set()

    def _greet(self, name):
        while not self._over.is_set():
            seen, answered = self.state[name]
            idle = None if answered is None else time.monotonic() - answered
            facts = {"seen": seen, "idle": idle}
            if name not in self.muted:
                self.say(name, Envelope(Kind.HELLO, NO_RUN, CONFIG, NAMES.index(name), facts=facts))
            self._over.wait(0.1)

    def _labor(self, name):
        while not self._over.is_set():
            question = self._waiting[name].get()
            while not self._waiting[name].empty():
                question = self._waiting[name].get()
            seen = [question.run, int(question.kind), *question.clock]
            self.state[name] = (seen, None)
            self._over.wait(self.work[name])
            self.say(name, Envelope(Kind.REPLY, RUN, CONFIG, question.member, question.clock, 1.0, {}, PARTS))
            self.state[name] = (seen, time.monotonic())

    def say(self, name, envelope):
        if not self._over.is_set():
            self.inbox.put((name, seal(envelope)))


@pytest.fixture
def gather(tmp_path):
    """Members, and their server when it has heard of them."""
    opened = []

    def make(names=NAMES, quorum=1, seconds=2.0, silent=10.0, **work):
        members = Members(**work)
        opened.append(members)
        plain = WireOptions()
        journal = Journal(tmp_path, "server")
        circle = Circle(
            members, names, RUN, CONFIG, MODEL, MODEL[:0], plain, quorum, seconds, silent, journal
        )
        circle.attend(0.5)
        return members, circle

    yield make
    for members in opened:
        members.close()


def timed(circle, turn, asked=None):
    """How long a turn takes, and who answered in it."""
    began = time.monotonic()
    answers = circle.request(MODEL.expand(len(circle), SIZE), Clock(turn), asked)
    return time.monotonic() - began, [answer is not None for answer in answers]


def test_a_slow_member_is_waited_for_once_and_sent_nothing_while_it_works(gather):
    members, circle = gather(NAMES[:2], seconds=5.0, m0=0.5, m1=200.0)
    took, who = timed(circle, 0)
    assert took > 4.9
    for turn in (1, 2):
        took, who = timed(circle, turn)
        assert took < 4.0, "the slow one is not waited for again"
        assert who == [True, False]
    assert [question.clock for question in members.asked["m1"]] == [Clock(0)]
    assert circle.close_books().missing == {"m1": 3}


def test_a_slow_member_that_has_become_free_takes_part_in_the_turn_that_is_open(gather):
    members, circle = gather(NAMES[:2], seconds=1.5, m0=0.1, m1=2.5)
    assert timed(circle, 0)[1] == [True, False]
    members.work.update(m0=4.0, m1=0.1)
    members.muted.add("m1")
    circle.seconds = 12.0
    took, who = timed(circle, 1)
    assert who == [True, True], "its late answer shows that it is free"
    assert [question.clock for question in members.asked["m1"]] == [Clock(0), Clock(1)]
    assert took < 10.0


def test_a_late_answer_that_is_lost_shows_in_the_hello(gather):
    members, circle = gather(NAMES[:2], seconds=1.0, m0=0.1, m1=200.0)
    timed(circle, 0)
    members.work.update(m0=2.0)
    circle.seconds = 4.0
    members.state["m1"] = (members.state["m1"][0], time.monotonic())  # it is done, and nobody heard of it
    timed(circle, 1)
    assert [question.clock for question in members.asked["m1"]][:2] == [Clock(0), Clock(1)]


def test_who_works_on_what_a_server_asked_before_its_restart_gets_its_limit_and_no_more(gather):
    members, circle = gather(NAMES[:2], seconds=0.5, m0=0.1)
    busy = Envelope(Kind.HELLO, NO_RUN, CONFIG, 1, facts={"seen": ["d" * 16, 1, 9, 0], "idle": None})
    threading.Timer(0.05, members.say, ("m1", busy)).start()
    members.work["m0"] = 0.3
    took, who = timed(circle, 0)
    assert who == [True, False]
    assert took > 0.4
    assert len(members.asked["m1"]) == 1


def test_a_slow_member_that_leaves_its_work_for_a_new_question_gets_it_and_is_not_waited_for(gather):
    """So do edges: they are asked in every turn, and again where the question is lost."""
    members, circle = gather(NAMES[:2], seconds=0.5, m0=0.1)
    busy = {"seen": [RUN, 1, 0, 0], "idle": None, "yields": True}
    word = Envelope(Kind.HELLO, NO_RUN, CONFIG, 1, facts=busy)
    members.say("m1", word)
    assert timed(circle, 0)[0] < 10.0, "its time runs also where it had the question before"
    members.work["m0"] = 4.0
    circle.seconds = 12.0
    threading.Timer(1.5, members.say, ("m1", word)).start()
    took, who = timed(circle, 1)
    assert who == [True, False]
    assert took < 10.0
    assert [question.clock for question in members.asked["m1"]] == [Clock(1), Clock(1)]


def test_who_was_late_in_a_turn_that_was_given_up_is_not_waited_for_in_the_next(gather):
    members, circle = gather(NAMES[:2], quorum=2, seconds=3.0, m0=0.1, m1=200.0)
    assert waits(circle, None, 4.0)
    circle.quorum, circle.look = 1, lambda: None
    took, who = timed(circle, 1)
    assert who == [True, False]
    assert took < 2.5
    assert len(members.asked["m1"]) == 1


def test_patience_grows_with_the_message_and_a_restarted_member_is_not_kept_waiting(gather, monkeypatch):
    assert patience(0) == pytest.approx(1.0)
    assert 5.0 < patience(10**7) < 60.0
    members, circle = gather(NAMES[:2], seconds=4.0, m0=0.1, m1=200.0)
    timed(circle, 0)  # both have seen a question
    members.state["m1"] = (members.state["m1"][0], time.monotonic())
    members.work.update(m1=200.0)
    monkeypatch.setattr(
        "sfedhp.deploy.messaging.gather._SLOW_LINK", 10.0
    )  # bytes/s: a message takes very long
    circle.attend(0.3)
    circle._behind.clear()
    restarted = threading.Timer(1.0, members.state.update, ({"m1": (None, None)},))
    restarted.start()
    timed(circle, 1)
    assert [question.clock for question in members.asked["m1"]] == [Clock(0), Clock(1), Clock(1)]


def drawn(*seats):
    return torch.tensor([seat in seats for seat in range(len(NAMES))])


def test_a_turn_in_which_none_of_those_drawn_is_there_passes_with_nobody(gather, tmp_path):
    _, circle = gather(silent=1.0, m0=0.1, m1=0.1)
    took, who = timed(circle, 0, drawn(2, 3))
    assert who == [False] * 4
    assert took < 20.0
    assert circle.close_books().missing == {"m2": 1, "m3": 1}
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert [line["missing"] for line in lines if line["event"] == "passed"] == [["m2", "m3"]]
    assert timed(circle, 1, drawn(1, 2))[1] == [False, True, False, False]


def test_the_models_stay_when_a_turn_passes_with_nobody(gather):
    _, circle = gather(silent=0.5, m0=0.1)
    draws = [drawn(2, 3), drawn(0, 1)]
    cloud = Cloud(ALGORITHMS["fedavg"](), circle, MODEL * 3, MODEL[:0], lambda turn: draws[turn])
    kept, stepped = (cloud.algorithm.global_model(served.state) for served in cloud.run(2))
    assert torch.equal(kept, MODEL * 3)
    assert torch.equal(stepped, MODEL)


def test_a_quorum_among_those_drawn_is_kept_also_then(gather):
    """With a quorum of two, one answer never makes a step: the turn passes when two are there to be drawn."""
    _, circle = gather(quorum=2, silent=0.6, m0=0.1, m1=0.1)
    assert timed(circle, 0, drawn(0, 2, 3))[1] == [False] * 4
    assert circle.close_books().missing == {"m0": 1, "m2": 1, "m3": 1}


def waits(circle, asked, seconds):
    """Whether a server still waits after so many seconds."""
    began = time.monotonic()

    def look():
        if time.monotonic() - began > seconds:
            raise InterruptedError

    try:
        circle.look = look
        circle.request(MODEL.expand(len(circle), SIZE), Clock(0), asked)
    except InterruptedError:
        return True
    return False


def test_where_nobody_is_there_or_fewer_than_the_quorum_a_server_waits(gather):
    _, nobody = gather(silent=0.3)
    assert waits(nobody, drawn(2, 3), 1.5)
    assert waits(nobody, None, 1.5)
    _, lonely = gather(quorum=2, silent=0.3, m0=0.1)
    assert waits(lonely, drawn(2, 3), 1.5)
    assert waits(lonely, None, 1.5)


def test_a_drawn_member_that_comes_while_the_turn_is_open_is_asked(gather):
    members, circle = gather(silent=4.0, muted=["m2"], m0=0.1, m2=0.1)
    circle._heard[2] = circle._heard[3] = -math.inf  # they have long been silent
    threading.Timer(0.5, members.muted.clear).start()
    assert timed(circle, 0, drawn(2, 3))[1] == [False, False, True, False]


def test_trouble_with_scores_is_not_waited_for_and_ends_nothing(gather, tmp_path):
    members, circle = gather(NAMES[:2], seconds=5.0, m0=0.1, m1=0.1)
    for name, seat in (("m0", 0), ("m1", 1)):
        members.work[name] = 100.0
        word = Envelope(Kind.SCORES, RUN, CONFIG, seat, Clock(4), facts={"trouble": "no room"})
        threading.Timer(0.2, members.say, (name, word)).start()
    began = time.monotonic()
    assert circle.score({"next": MODEL.expand(2, SIZE)}, {}, Clock(4), 20.0) == {}
    assert time.monotonic() - began < 15.0
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert [line["reason"] for line in lines if line["event"] == "refused"] == ["no room"] * 2


def test_who_is_in_trouble_is_not_asked_the_same_again(gather):
    members, circle = gather(NAMES[:2], seconds=12.0, m0=5.0)
    seen = [RUN, int(Kind.WORK), 0, 0]
    trouble = Envelope(Kind.REPLY, RUN, CONFIG, 1, Clock(0), facts={"trouble": "no room"})
    words = [Envelope(Kind.HELLO, NO_RUN, CONFIG, 1, facts={"seen": None}), trouble]
    words.append(replace(words[0], facts={"seen": seen, "idle": 2.4}))
    for when, word in zip((0.1, 0.3, 2.5), words, strict=True):
        threading.Timer(when, members.say, ("m1", word)).start()
    assert timed(circle, 0)[1] == [True, False]
    assert len(members.asked["m1"]) == 1

"""Members have certificates, and may still say anything: what has no form is refused, and ends nothing."""

from __future__ import annotations

import json
import queue
import struct
import time
import zlib

import pytest
import torch

from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.gather import Circle
from sfedhp.deploy.messaging.protocol import (
    NO_RUN,
    Envelope,
    Kind,
    check_books,
    counts_of,
    greeting_of,
    pack,
    seal,
    trouble_of,
    unpack,
    unseal,
)
from sfedhp.deploy.messaging.traffic import WAYS, Books
from sfedhp.deploy.roles.client import ClientRole
from sfedhp.wire import DecodeError
from sfedhp.wire.link import WireOptions
from tests.support.deploy_memory import Federation, experiment

RUN, CONFIG, NOW = "a" * 16, "b" * 16, Clock(3, 1)
MODEL = torch.arange(1.0, 6.0)
DEEP = "[" * 900 + "]" * 900
HEAD = len(seal(Envelope(Kind.HELLO, NO_RUN, CONFIG, 0))) - 4


def sealed(kind, facts, run=RUN, parts=(), weight=1.0):
    """A message with these characters in place of its facts."""
    whole = seal(Envelope(kind, run, CONFIG, 1, NOW, weight, {}, parts))
    rest = whole[HEAD + 4 * len(parts) + 4 :]
    text = facts.encode()
    checked = whole[: HEAD - 4] + struct.pack("<I", len(text)) + whole[HEAD : HEAD + 4 * len(parts)] + text
    return checked + struct.pack("<I", zlib.crc32(checked)) + rest


HELLOS = {
    "a list": "[1]",
    "a number": "7",
    "brackets without end": "[" * 100_000,
    "names within names": '{"a":' * 100_000,
    "words for a time": '{"idle": "x", "seen": null}',
    "no time": '{"idle": NaN}',
    "an endless time": '{"idle": 1e999}',
    "a time with many digits": '{"idle": ' + "9" * 400 + "}",
    "too many digits": '{"idle": ' + "9" * 5000 + "}",
    "a word seen": '{"seen": "x"}',
    "a short question": '{"seen": ["a", 1]}',
    "a question of words": '{"seen": ["a", "b", "c", "d"]}',
    "a question of lists": '{"seen": [[], 1, 2, 3]}',
    "an edge round that is none": '{"edge_round": {}}',
    "a list of members": '{"members": [1]}',
    "members that are no yes or no": '{"members": {"a": ' + DEEP + "}}",
    "neither yes nor no": '{"yields": 2}',
}
REPLIES = {
    "a number": "7",
    "trouble that is no words": '{"trouble": ' + DEEP + "}",
    "no books": '{"books": 1}',
    "books without ways": '{"books": {}}',
    "books of another server": json.dumps({"books": Books(3).saved()}),
}
SCORES = {
    "a list": "[]",
    "a number for counts": '{"test": 1}',
    "a number for a kind": '{"test": {"gm": 1}}',
    "too few": '{"test": {"gm": [1, 2]}}',
    "words": '{"test": {"gm": ["1", 2, 0.5]}}',
    "more right than rows": '{"test": {"gm": [3, 2, 0.5]}}',
    "a loss with many digits": '{"train": {"loss": [1, 2, ' + "9" * 400 + "]}}",
    "a density that is none": '{"density": "much"}',
    "clients in a list": '{"clients": [1]}',
    "a client without counts": '{"clients": {"a": 1}}',
    "a client with wrong counts": '{"clients": {"a": {"validation": 3}}}',
    "books of another server": json.dumps({"books": Books(3).saved()}),
}


class Wire:
    """The server's end of the post; questions are lost, and members say what the test has them say."""

    def __init__(self):
        self.inbox = queue.SimpleQueue()

    def send(self, to, data):
        pass


@pytest.fixture
def circle(tmp_path):
    plain, wire = WireOptions(), Wire()
    books = Books(2)
    made = Circle(
        wire,
        ["first", "second"],
        RUN,
        CONFIG,
        MODEL,
        MODEL[:0],
        plain,
        quorum=1,
        seconds=5.0,
        silent_seconds=5.0,
        journal=Journal(tmp_path, "server"),
        told=lambda seat, facts: books.add(facts["books"]) if "books" in facts else None,
    )
    for seat, name in enumerate(made.names):
        wire.inbox.put((name, seal(Envelope(Kind.HELLO, NO_RUN, CONFIG, seat))))
    made.attend(0.05)
    return made


def refused(tmp_path):
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    return [line["member"] for line in lines if line["event"] == "refused"]


@pytest.mark.parametrize("facts", HELLOS.values(), ids=HELLOS)
def test_a_hello_without_form_is_refused(circle, tmp_path, facts):
    before = circle.facts["second"]
    circle.post.inbox.put(("second", sealed(Kind.HELLO, facts, NO_RUN)))
    circle.attend(0.05)
    assert refused(tmp_path) == ["second"]
    assert circle.facts["second"] == before


@pytest.mark.parametrize("facts", REPLIES.values(), ids=REPLIES)
def test_a_reply_without_form_is_refused_and_the_turn_goes_on(circle, tmp_path, facts):
    parts, _ = pack(MODEL, len(MODEL), WireOptions())
    circle.post.inbox.put(("second", sealed(Kind.REPLY, facts, parts=parts)))
    circle.post.inbox.put(("first", seal(Envelope(Kind.REPLY, RUN, CONFIG, 0, NOW, 1.0, {}, parts))))
    first, second = circle.request(MODEL.expand(2, -1), NOW, None)
    assert first is not None
    assert second is None
    assert refused(tmp_path) == ["second"]


@pytest.mark.parametrize("facts", SCORES.values(), ids=SCORES)
def test_counts_without_form_are_refused(circle, tmp_path, facts):
    good = {"test": {"gm": [1, 2, 0.5]}, "density": 0.5}
    circle.post.inbox.put(("second", sealed(Kind.SCORES, facts)))
    circle.post.inbox.put(("first", seal(Envelope(Kind.SCORES, RUN, CONFIG, 0, NOW, facts=good))))
    assert circle.score({"next": MODEL.expand(2, -1)}, {}, NOW, 3.0) == {0: good}
    assert refused(tmp_path) == ["second"]


def test_what_has_form_is_kept_and_the_rest_left_out():
    hello = {"seen": [RUN, 1, 2, 3], "idle": 0.5, "yields": True, "edge_round": None, "members": {"a": True}}
    assert greeting_of({**hello, "up": False}) == hello
    assert greeting_of({}) == {}
    client = {"test": {"pm": [3, 4, float("inf")]}, "train": {"loss": [0, 4, 3]}, "density": 1}
    edge = {"clients": {"client-0-0": client}, "density": 0.25}
    assert counts_of({**edge, "books": {}, "more": 1}) == edge
    assert counts_of(client) == client
    assert trouble_of({}) is None
    assert trouble_of({"trouble": ""}) == ""
    assert len(trouble_of({"trouble": "x" * 10_000})) < 1000
    assert unseal(sealed(Kind.HELLO, '{"seen": null}')).facts == {"seen": None}


@pytest.mark.parametrize(
    "change",
    [
        {"missing": [1]},
        {"missing": {"a": "b"}},
        {"up": 1},
        {"up": [[0], [0]]},
        {"up": [[0], [0], 1]},
        {"up": [[0, 1], [0], [0]]},
        {"up": [["0"], [0], [0]]},
        {"up": [[2**60], [0], [0]]},
        {"more": 1},
    ],
)
def test_books_without_form_are_refused_before_they_are_added(change):
    check_books({})
    check_books({"books": Books(1).saved()})
    assert set(Books(1).saved()) == {*WAYS, "missing"}
    with pytest.raises(DecodeError, match="books"):
        check_books({"books": Books(1).saved() | change})


def test_trouble_with_scores_is_told_at_once(tmp_path, monkeypatch):
    """A client whose counting fails is not asked for its counts again and again, and the run goes on."""
    plain = ClientRole._score

    def troubled(role, question):
        if role.site.name == "client-0-1":
            raise RuntimeError("out of memory")
        return plain(role, question)

    monkeypatch.setattr(ClientRole, "_score", troubled)
    federation = Federation(tmp_path, experiment("fedavg", rounds=2))
    began = time.monotonic()
    federation.start()
    federation.finish()
    assert time.monotonic() - began < 20.0
    assert federation.exchange.messages["client-0-1", "SCORE"] == 2
    assert all("gm" in row and row["missing"] == {} for row in federation.rows())
    reasons = {line["reason"] for line in federation.events("cloud", "refused")}
    assert reasons == {"out of memory"}


def test_all_that_the_roles_say_has_form(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=2))
    federation.start()
    federation.finish()
    for name in ("cloud", "edge-0", "edge-1"):
        assert federation.events(name, "refused") == []
    assert federation.roles["cloud"]._circle.facts["edge-0"]["yields"], "it leaves its round for a newer one"
    about = federation.roles["edge-0/bridge"]._about()
    assert about["members"].keys() == {"client-0-0", "client-0-1"}
    assert greeting_of(about) == about
    assert "yields" not in federation.roles["edge-0/edge"]._circle.facts["client-0-0"]


def test_a_large_model_that_can_be_sent_can_be_read(monkeypatch):
    """What may be declared follows from the model that is expected, and from no fixed number of bytes."""
    limits = []
    whole = torch.cat([MODEL, MODEL[:2]])

    def noting(data, base=None, size=None, limit=2**28):
        limits.append(limit / size)
        return decode(data, base, size, limit)

    from sfedhp.deploy.messaging.protocol import decode

    monkeypatch.setattr("sfedhp.deploy.messaging.protocol.decode", noting)
    parts, held = pack(whole, len(MODEL), WireOptions(values="float16"))
    assert torch.equal(unpack(parts, MODEL, MODEL[:2]), held)
    assert limits == [8.0, 8.0, 8.0]

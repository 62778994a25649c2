"""Members have certificates, and may still say anything: what has no form is refused, and ends nothing."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
import torch

from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.metadata import check_traffic, error_of, hello_of, scores_of
from sfedhp.deploy.messaging.payload import pack
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.traffic import FLOWS, Traffic
from sfedhp.deploy.roles.client import ClientRole
from sfedhp.wire import DecodeError
from sfedhp.wire.link import WireOptions
from tests.support.deploy_memory import Federation, experiment
from tests.support.deploy_time import TimedInbox, Timeline
from tests.support.json_lines import json_lines
from tests.support.member_groups import CONFIG, RUN, member_group
from tests.support.patient_clock import CLOCK

NOW = Clock(3, 1)
MODEL = torch.arange(1.0, 6.0)
DEEP = "[" * 900 + "]" * 900
HEAD = len(encode_message(Envelope(Kind.HELLO, NO_RUN, CONFIG, 0))) - 4


def message(kind, metadata, run=RUN, parts=(), weight=1.0):
    """A message with these characters in place of its metadata."""
    whole = encode_message(Envelope(kind, run, CONFIG, 1, NOW, weight, {}, parts))
    rest = whole[HEAD + 4 * len(parts) + 4 :]
    text = metadata.encode()
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
    "books of another server": json.dumps({"books": Traffic(3).to_dict()}),
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
    "books of another server": json.dumps({"books": Traffic(3).to_dict()}),
}


class Wire:
    """The server's transport; requests are lost, and members say what the test has them say."""

    def __init__(self):
        self.time = Timeline()
        self.inbox = TimedInbox(self.time)

    def send(self, to, data):
        pass


@pytest.fixture
def group(tmp_path):
    wire, traffic = Wire(), Traffic(2)
    made = member_group(
        wire,
        ["first", "second"],
        MODEL,
        tmp_path,
        timeout=5.0,
        silent_seconds=5.0,
        on_metadata=lambda seat, said: traffic.merge(said["books"]) if "books" in said else None,
    )
    for seat, name in enumerate(made.names):
        wire.inbox.put((name, encode_message(Envelope(Kind.HELLO, NO_RUN, CONFIG, seat))))
    made.listen(0.05)
    return made


def refused(tmp_path):
    lines = json_lines(tmp_path / "log.jsonl")
    return [line["member"] for line in lines if line["event"] == "refused"]


@pytest.mark.parametrize("metadata", HELLOS.values(), ids=HELLOS)
def test_a_hello_without_form_is_refused(group, tmp_path, metadata):
    before = group.metadata()["second"]
    group.transport.inbox.put(("second", message(Kind.HELLO, metadata, NO_RUN)))
    group.listen(0.05)
    assert refused(tmp_path) == ["second"]
    assert group.metadata()["second"] == before


@pytest.mark.parametrize("metadata", REPLIES.values(), ids=REPLIES)
def test_a_reply_without_form_is_refused_and_the_turn_continues(group, tmp_path, metadata):
    parts, _ = pack(MODEL, len(MODEL), WireOptions())
    group.transport.inbox.put(("second", message(Kind.REPLY, metadata, parts=parts)))
    group.transport.inbox.put(
        ("first", encode_message(Envelope(Kind.REPLY, RUN, CONFIG, 0, NOW, 1.0, {}, parts)))
    )
    first, second = group.request(MODEL.expand(2, -1), NOW, None)
    assert first is not None
    assert second is None
    assert refused(tmp_path) == ["second"]


@pytest.mark.parametrize("metadata", SCORES.values(), ids=SCORES)
def test_counts_without_form_are_refused(group, tmp_path, metadata):
    good = {"test": {"gm": [1, 2, 0.5]}, "density": 0.5}
    group.transport.inbox.put(("second", message(Kind.SCORES, metadata)))
    group.transport.inbox.put(
        ("first", encode_message(Envelope(Kind.SCORES, RUN, CONFIG, 0, NOW, metadata=good)))
    )
    assert group.score({"next": MODEL.expand(2, -1)}, {}, NOW, 3.0) == {0: good}
    assert refused(tmp_path) == ["second"]


def test_what_has_form_is_kept_and_the_rest_left_out():
    hello = {"seen": [RUN, 1, 2, 3], "idle": 0.5, "yields": True, "edge_round": None, "members": {"a": True}}
    assert hello_of({**hello, "up": False}) == hello
    assert hello_of({}) == {}
    client = {"test": {"pm": [3, 4, float("inf")]}, "train": {"loss": [0, 4, 3]}, "density": 1}
    edge = {"clients": {"client-0-0": client}, "density": 0.25}
    assert scores_of({**edge, "books": {}, "more": 1}) == edge
    assert scores_of(client) == client
    assert error_of({}) is None
    assert error_of({"trouble": ""}) == ""
    long = error_of({"trouble": "x" * 10_000})
    assert long is not None
    assert len(long) < 1000
    assert decode_message(message(Kind.HELLO, '{"seen": null}')).metadata == {"seen": None}


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
    check_traffic({})
    check_traffic({"books": Traffic(1).to_dict()})
    assert set(Traffic(1).to_dict()) == {*FLOWS, "missing"}
    with pytest.raises(DecodeError, match="books"):
        check_traffic({"books": Traffic(1).to_dict() | change})


def test_an_error_in_scores_is_reported_at_once(tmp_path, monkeypatch):
    """A client whose counting fails is not asked for its counts again and again, and the run continues."""
    plain = ClientRole._score

    def failing(role, request):
        if role.site.name == "client-0-1":
            raise RuntimeError("out of memory")
        return plain(role, request)

    monkeypatch.setattr(ClientRole, "_score", failing)
    federation = Federation(tmp_path, experiment("fedavg", rounds=2))
    began = CLOCK()
    federation.start()
    federation.finish()
    assert CLOCK() - began < 20.0
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
    assert federation.roles["cloud"]._members.metadata()["edge-0"]["yields"], (
        "it leaves its round for a newer one"
    )
    metadata = federation.roles["edge-0/bridge"]._edge_metadata()
    assert metadata["members"].keys() == {"client-0-0", "client-0-1"}
    assert hello_of(metadata) == metadata
    assert "yields" not in federation.roles["edge-0/edge"]._members.metadata()["client-0-0"]

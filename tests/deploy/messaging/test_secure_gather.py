"""A server that learns sums alone, and members that fail, accuse each other, or are too few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.identity import CardReader, Identity
from sfedhp.deploy.messaging.acceptance import Acceptance
from sfedhp.deploy.messaging.protocol import NO_RUN, REPLIES, Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.request import AllMembersFailedError
from sfedhp.deploy.messaging.secure_gather import SecureGroup
from sfedhp.privacy import masks
from sfedhp.privacy.ring import MaskedFormat, SecureOptions
from sfedhp.privacy.secure_member import SecureMember
from sfedhp.privacy.secure_messages import PeerError, context_of, decode_seats
from sfedhp.wire.link import WireOptions
from tests.support.deploy_time import TimedInbox, Timeline
from tests.support.json_lines import json_lines
from tests.support.member_certificates import certificate, key_of

RUN, CONFIG, NOW = "a" * 16, "b" * 16, Clock(3, 1)
MODEL, OPTIONS = torch.arange(1.0, 6.0), SecureOptions(10.0, 1e-6)
MEMBERS = 4
NAMES = [f"client-0-{seat}" for seat in range(MEMBERS)]


class Member:
    """A client that follows the protocol; what it replies to a kind of request can be replaced."""

    def __init__(self, wire: Wire, seat: int):
        self.wire, self.seat, self.channel = wire, seat, masks.new_key()
        self.replies: dict[Kind, Any] = {}
        self.peers: dict[int, bytes] = {}
        self.seen: list[Any] | None = None
        self.idle: float | None = None

    @property
    def key_id(self):
        return masks.public_bytes(self.channel).hex()[:16]

    def hello(self):
        content = {
            "rows": [10 * (self.seat + 1), 1, 0],
            "key": self.key_id,
            "seen": self.seen,
            "idle": self.idle,
        }
        self.wire.say(self.seat, Envelope(Kind.HELLO, NO_RUN, CONFIG, self.seat, metadata=content))

    def on(self, request: Envelope) -> None:
        kind = REPLIES[request.kind]
        self.seen, self.idle = [RUN, int(request.kind), *request.clock], None
        try:
            content = self.replies.get(kind, self.content)(request)
        except PeerError as error:
            content = {"metadata": {"trouble": str(error), "accused": error.seats}}
        except ValueError as error:
            content = {"metadata": {"trouble": str(error)}}
        if content is not None:
            self.idle = 0.0
            self.wire.say(self.seat, Envelope(kind, RUN, CONFIG, self.seat, request.clock, **content))

    def content(self, request: Envelope) -> dict[str, Any]:
        name = NAMES[self.seat]
        if request.kind is Kind.KEY:
            identity = Identity(certificate(name, "root"), key_of(name))
            return {"parts": (identity.card(masks.public_bytes(self.channel), CONFIG),)}
        if request.kind is Kind.OFFER:
            reader = CardReader(certificate("root", "root"), CONFIG)
            for (seat, named), card in zip(request.metadata["cards"], request.parts[1:], strict=True):
                self.peers[seat] = reader.public_key(card, named)
            attempt, seats = decode_seats(request.parts[0])
            peers = {seat: self.peers[seat] for seat in seats if seat != self.seat}
            context = context_of(RUN, request.clock, attempt)
            self.secrets = SecureMember(context, attempt, self.seat, self.channel, peers, 3)
            return {"parts": (self.secrets.offer(),)}
        if request.kind is Kind.CONFIRM:
            return {"parts": (self.secrets.confirm(request.parts[0]),)}
        if request.kind is Kind.UNMASK:
            return {"parts": (self.secrets.reveal(request.parts[0]),)}
        weight = 10.0 * (self.seat + 1)

        def words(roster):
            form = MaskedFormat(OPTIONS, max(MEMBERS, len(roster.records) + 1), 5, 0)
            return form, form.encode(self.change(), MODEL[:0], weight / roster.total)

        model, roster = request.parts
        return {"weight": weight, "parts": (self.secrets.masked(model, roster, words),)}

    def change(self):
        return torch.full((5,), float(self.seat))


class Wire:
    def __init__(self):
        self.time = Timeline()
        self.inbox = TimedInbox(self.time)
        self.members = [Member(self, seat) for seat in range(MEMBERS)]
        self.sent: list[Envelope] = []

    def beat(self):
        """Heartbeats of all members, three in a second."""
        for member in self.members:
            member.hello()
        self.time.after(0.3, self.beat)

    def send(self, to, data):
        envelope = decode_message(data)
        self.sent.append(envelope)
        self.members[NAMES.index(to)].on(envelope)

    def say(self, seat, envelope):
        self.inbox.put((NAMES[seat], encode_message(envelope)))

    def kinds(self):
        return [each.kind for each in self.sent]


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def group(wire, tmp_path):
    found = SecureGroup(
        wire,
        NAMES,
        RUN,
        CONFIG,
        MODEL,
        MODEL[:0],
        WireOptions(),
        quorum=1,
        timeout=2.0,
        silent_seconds=1.0,
        log=EventLog(tmp_path, "server"),
        accept=Acceptance(rows_reported_once=True, max_change=3.0),
        clock=wire.time,
        secure=OPTIONS,
        seats=MEMBERS,
        clients=MEMBERS,
        threshold=0,
        cards=CardReader(certificate("root", "root"), CONFIG),
    )
    wire.beat()
    found.listen(0.05)
    return found


def ask(group, asked=None, clock=NOW):
    return group.request(MODEL.expand(MEMBERS, 5), clock, asked)


def events(folder: Path, event: str):
    lines = json_lines(folder / "log.jsonl")
    return [line for line in lines if line["event"] == event]


def mean_of(*seats):
    weights = [10.0 * (seat + 1) for seat in seats]
    return sum(weight * seat for weight, seat in zip(weights, seats, strict=True)) / sum(weights)


def check(replies, *seats):
    assert [seat for seat, reply in enumerate(replies) if reply is not None] == list(seats)
    for seat in seats:
        assert replies[seat].weight == 10.0 * (seat + 1)
        assert torch.allclose(replies[seat].upload, MODEL + mean_of(*seats), atol=1e-6)


def silent(request):
    return None


def fails(**more):
    return lambda request: {"metadata": {"trouble": "no", **more}}


def test_keys_are_requested_once_and_sent_once(group, wire):
    check(ask(group), 0, 1, 2, 3)
    assert wire.kinds().count(Kind.KEY) == 4
    wire.sent.clear()
    check(ask(group, clock=Clock(3, 2)), 0, 1, 2, 3)
    assert wire.kinds() == [
        kind for kind in (Kind.OFFER, Kind.WORK, Kind.CONFIRM, Kind.UNMASK) for _ in range(4)
    ]
    assert all(each.metadata["cards"] == [] for each in wire.sent if each.kind is Kind.OFFER)


def test_a_member_that_was_started_again_is_asked_for_its_new_key(group, wire):
    check(ask(group), 0, 1, 2, 3)
    wire.members[2].channel, wire.members[2].peers = masks.new_key(), {}
    wire.members[2].hello()
    group.listen(0.05)
    wire.sent.clear()
    check(ask(group, clock=Clock(3, 2)), 0, 1, 2, 3)
    assert wire.kinds().count(Kind.KEY) == 1
    told = {
        each.member: [seat for seat, _ in each.metadata["cards"]]
        for each in wire.sent
        if each.kind is Kind.OFFER
    }
    assert told == {0: [2], 1: [2], 2: [0, 1, 3], 3: [2]}
    group.forget()
    for member in wire.members:
        member.peers = {}
        member.hello()
    group.listen(0.05)
    check(ask(group, clock=Clock(4, 0)), 0, 1, 2, 3)


@pytest.mark.parametrize("kind", [Kind.KEYS, Kind.OFFERS, Kind.REPLY])
@pytest.mark.parametrize("reply", [silent, fails(), lambda request: {"parts": ()}])
def test_one_that_fails_at_a_stage_is_left_out(group, wire, kind, reply):
    wire.members[1].replies[kind] = reply
    check(ask(group), 0, 2, 3)
    assert group.take_traffic().missing == {"client-0-1": 1}


def test_one_that_lost_the_keys_of_others_gets_them_in_the_next_round(group, wire):
    check(ask(group), 0, 1, 2, 3)
    wire.members[1].replies[Kind.OFFERS] = fails()
    check(ask(group, clock=Clock(3, 2)), 0, 2, 3)
    wire.members[1].replies.clear()
    wire.sent.clear()
    check(ask(group, clock=Clock(3, 3)), 0, 1, 2, 3)
    told = {each.member: len(each.metadata["cards"]) for each in wire.sent if each.kind is Kind.OFFER}
    assert told == {0: 0, 1: 3, 2: 0, 3: 0}


@pytest.mark.parametrize("kind", [Kind.CONFIRMED, Kind.SHARES])
def test_enough_shares_do_with_one_that_says_nothing(group, wire, kind):
    wire.members[1].replies[kind] = silent
    check(ask(group), 0, 1, 2, 3)


def restart(member):
    """It has lost all it had, and its heartbeats show it."""
    member.seen, member.peers, member.channel = None, {}, masks.new_key()


@pytest.mark.parametrize("kind", [Kind.KEYS, Kind.OFFERS])
def test_where_too_few_can_take_part_others_are_waited_for(group, wire, kind):
    """Two of four are not a majority: the round continues when a third is there."""
    for seat in (0, 1):
        wire.members[seat].replies[kind] = silent
    wire.time.after(5.0, wire.members[1].replies.clear)
    wire.time.after(5.0, restart, wire.members[1])
    found = [reply is not None for reply in ask(group)]
    assert found[2:] == [True, True]
    assert wire.time() > 5.0


@pytest.mark.parametrize("kind", [Kind.CONFIRMED, Kind.SHARES])
def test_too_few_shares_leave_the_round_out(group, wire, tmp_path, kind):
    for seat in (0, 1):
        wire.members[seat].replies[kind] = fails()
    check(ask(group))
    assert events(tmp_path, "no sum")[0]["reason"] == "too few clients sent their shares"
    assert sum(group.take_traffic().missing.values()) == 4


def test_a_member_whose_shares_give_no_secret_costs_one_round(group, wire, tmp_path):
    member = wire.members[1]

    def offer(request):
        member.content(request)  # draws the secrets
        wrong = {seat + 1: bytes([seat]) * 33 for seat in range(MEMBERS)}
        member.secrets._shares = (wrong, wrong)
        return {"parts": (member.secrets.offer(),)}

    member.replies[Kind.OFFERS] = offer
    check(ask(group))
    assert events(tmp_path, "no sum")[0]["reason"] == "the shares of client-0-1 are wrong"
    check(ask(group, clock=Clock(3, 2)), 0, 2, 3)
    check(ask(group, clock=Clock(3, 3)), 0, 2, 3)


def test_too_few_uploads_end_after_some_attempts(group, wire):
    for seat in (0, 1):
        wire.members[seat].replies[Kind.REPLY] = fails()
    check(ask(group))
    assert wire.kinds().count(Kind.OFFER) == 3 * MEMBERS


def test_a_mean_that_is_too_far_off_is_left_out(group, wire, tmp_path):
    wire.members[1].change = lambda: torch.full((5,), 1e4)
    group.accept = Acceptance(rows_reported_once=True, max_change=0.1)
    check(ask(group))
    assert "limits.max_change" in events(tmp_path, "no sum")[0]["reason"]


@pytest.mark.parametrize("kind", [Kind.OFFERS, Kind.REPLY])
def test_who_is_accused_by_several_is_left_out_alone(group, wire, tmp_path, kind):
    once = {seat: iter([fails(accused=[1])]) for seat in (0, 2, 3)}
    for seat, calls in once.items():
        wire.members[seat].replies[kind] = lambda request, calls=calls, seat=seat: next(
            calls, wire.members[seat].content
        )(request)
    if kind is Kind.REPLY:
        wire.members[1].replies[kind] = fails()
    check(ask(group), 0, 2, 3)
    assert events(tmp_path, "accused")[0]["members"] == ["client-0-1"]


def test_a_single_accuser_is_left_out_with_whom_it_accuses(group, wire, tmp_path):
    wire.members[3].replies[Kind.OFFERS] = fails(accused=[1])
    check(ask(group))  # two of four are left, and a sum needs three
    assert events(tmp_path, "accused")[0]["members"] == ["client-0-1", "client-0-3"]
    assert "clients have keys" in events(tmp_path, "no sum")[0]["reason"]


def test_the_run_ends_where_every_member_fails(group, wire):
    for member in wire.members:
        member.replies[Kind.REPLY] = fails()
    with pytest.raises(AllMembersFailedError, match="no"):
        ask(group)


def test_one_that_has_not_reported_its_rows_takes_no_part(group, wire):
    group.members[1].rows = None
    check(ask(group), 0, 2, 3)


def test_a_drawn_part_of_the_members(group):
    check(ask(group, torch.tensor([True, True, False, True])), 0, 1, 3)


def test_totals_come_with_the_first_request(group, wire):
    group.totals = {"rows": 3}
    check(ask(group), 0, 1, 2, 3)
    assert [each.metadata.get("totals") for each in wire.sent[:4]] == [{"rows": 3}] * 4
    assert not any("totals" in each.metadata for each in wire.sent if each.kind is Kind.WORK)

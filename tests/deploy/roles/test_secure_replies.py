"""What a client refuses of a server's requests, and what it believes of others' keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sfedhp.core.errors import InputError
from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.identity import Identity
from sfedhp.deploy.messaging.protocol import Envelope, Kind
from sfedhp.deploy.roles.secure_replies import SecureReplies
from sfedhp.engine.roles import Reply
from sfedhp.privacy import masks
from sfedhp.privacy.secure_messages import PeerError, encode_seats
from sfedhp.privacy.secure_sum import SecureSum
from tests.support.deploy_memory import Federation, experiment
from tests.support.member_certificates import certificate, key_of

RUN, NOW, LATER = "a" * 16, Clock(0, 1), Clock(0, 2)
UPLOAD, RECEIVED = torch.ones(4), torch.zeros(4)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    what = experiment("hierfavg", secure=True, edges=1, clients_per_edge=3)
    return Federation(tmp_path_factory.mktemp("kits"), what)


@pytest.fixture
def clients(federation):
    kits = [(site, federation.folder / site.name) for site in federation.layout.clients]
    return [SecureReplies(site, kit, 4, 0, EventLog(kit / "run", site.name)) for site, kit in kits]


def request(kind, *parts, clock=NOW, **metadata):
    return Envelope(kind, RUN, "", 0, clock, metadata=metadata, parts=parts)


def card(client):
    return client.reply_to(request(Kind.KEY))["parts"][0]


def invite(clients, seat, attempt=bytes(8), seats=(0, 1, 2), **change):
    others = [other for other in range(3) if other != seat]
    named = {"cards": [[other, f"client-0-{other}"] for other in others]} | change
    cards = [card(clients[other]) for other in others]
    return request(Kind.OFFER, encode_seats(attempt, seats), *cards, **named)


def offered(clients, clock=NOW):
    """The server's attempt, with offers of all three."""
    attempt = SecureSum(RUN, clock, b"", range(3), 2)
    attempt.total = 6.0
    for seat, client in enumerate(clients):
        invitation = replace(invite(clients, seat, attempt.attempt), clock=clock)
        parts = client.reply_to(invitation)["parts"]
        attempt.offers[seat] = attempt.read_offer(seat, parts[0])
    return attempt


def masked(client, roster, upload=UPLOAD, weight=2.0, clock=NOW):
    return client.masked(request(Kind.WORK, b"", roster, clock=clock), Reply(upload, weight), RECEIVED)


def weighing(attempt, seat, total):
    """The roster of a server that says something else of what all weigh."""
    attempt.total, before = total, attempt.total
    roster = attempt.roster(seat)
    attempt.total = before
    return roster


def test_an_invitation_is_answered_once_for_each_attempt(clients):
    first = clients[0].reply_to(invite(clients, 0))
    assert clients[0].reply_to(invite(clients, 0)) == first
    assert clients[0].reply_to(invite(clients, 0, bytes(7) + b"1")) != first


WRONG_INVITATIONS = {
    "no parts": (lambda it: replace(it, parts=()), "has no part"),
    "cards that are not named": (lambda it: replace(it, metadata={}), "do not match their list"),
    "odd names": (lambda it: replace(it, metadata={"cards": "all"}), "do not match their list"),
    "without this client": (
        lambda it: replace(it, parts=(encode_seats(bytes(8), [1, 2]), *it.parts[1:])),
        "this one",
    ),
    "two few": (
        lambda it: replace(it, parts=(encode_seats(bytes(8), [0]), *it.parts[1:])),
        "needs 2 clients",
    ),
    "one without a card": (
        lambda it: replace(it, parts=(encode_seats(bytes(8), [0, 1, 2, 3]), *it.parts[1:])),
        "have not arrived",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), WRONG_INVITATIONS.values(), ids=WRONG_INVITATIONS)
def test_wrong_invitations_are_refused(clients, change, sentence):
    with pytest.raises(InputError, match=f"^Secure aggregation: .*{sentence}"):
        clients[0].reply_to(change(invite(clients, 0)))


def test_one_member_under_two_names_is_refused(clients):
    """A server could be all others but one, if it had a certificate of one member."""
    wrong = invite(clients, 0, cards=[[1, "client-0-1"], [2, "client-0-1"]])
    with pytest.raises(InputError, match="have not arrived"):
        clients[0].reply_to(replace(wrong, parts=(wrong.parts[0], wrong.parts[1], wrong.parts[1])))


@pytest.mark.parametrize("name", ["client-0-0", "authority-edge-0", "localhost", "client-server.example"])
def test_only_other_clients_are_believed(clients, name):
    """Not the own name, and not a server, although the authority knows it."""
    identity = Identity(certificate(name, "authority-edge-0"), key_of(name))
    forged = identity.card(masks.public_bytes(masks.new_key()), clients[0]._site.config)
    wrong = invite(clients, 0, cards=[[1, name], [2, "client-0-2"]])
    with pytest.raises(PeerError, match="seats 1 cannot"):
        clients[0].reply_to(replace(wrong, parts=(wrong.parts[0], forged, wrong.parts[2])))


def test_an_upload_needs_a_roster_of_this_round(clients):
    attempt = offered(clients)
    roster = attempt.roster(0)
    for wrong in (request(Kind.WORK, b""), request(Kind.WORK, b"", roster, clock=Clock(0, 2))):
        with pytest.raises(InputError, match="has no secrets of this round"):
            clients[0].masked(wrong, Reply(UPLOAD, 2.0), RECEIVED)
    with pytest.raises(InputError, match="weighs less than this client"):
        masked(clients[0], weighing(attempt, 0, 1.0))
    with pytest.raises(InputError, match="not finite"):
        masked(clients[0], roster, UPLOAD * torch.nan)
    assert masked(clients[0], roster) == masked(clients[0], roster)
    with pytest.raises(InputError, match="a second one"):
        masked(clients[0], weighing(attempt, 0, 7.0))
    with pytest.raises(InputError, match="cut off"):
        masked(clients[1], attempt.roster(1)[:-1])


def test_a_client_says_which_share_of_its_upload_was_cut(federation, clients):
    roster = offered(clients).roster(0)
    masked(clients[0], roster, torch.tensor([1.0, 100.0, -3.0, 0.0]))
    (line,) = federation.events("client-0-0", "cut")
    assert line["share"] == 0.25


def test_one_list_of_clients_is_confirmed_in_a_round_whatever_is_attempted(clients):
    """Two sums of the same uploads, of other clients, would tell their difference."""
    for answered, clock, allowed in (
        ([0, 1, 2], NOW, True),
        ([0, 1, 2], NOW, True),
        ([0, 1, 2], LATER, True),
        ([0, 1], NOW, False),
    ):
        attempt = offered(clients, clock)
        for seat in range(3):
            masked(clients[seat], attempt.roster(seat), clock=clock)
        survivors = request(Kind.CONFIRM, encode_seats(attempt.attempt, answered), clock=clock)
        if allowed:
            assert clients[0].reply_to(survivors)["parts"]
        else:
            with pytest.raises(InputError, match="another list of clients was confirmed in this round"):
                clients[0].reply_to(survivors)
    for kind in (Kind.CONFIRM, Kind.UNMASK):
        later = request(kind, encode_seats(attempt.attempt, [0, 1]), clock=LATER)
        with pytest.raises(InputError, match="has no secrets of this round"):
            clients[0].reply_to(later)


def test_more_clients_than_the_kit_knows_need_a_majority_of_them(clients):
    """Clients may have been added to the server since: half of them must not be enough."""
    member = clients[0]
    member._clients, seats = 2, (0, 1, 2)
    member.reply_to(invite(clients, 0, seats=seats))
    assert member._member.threshold == 2
    member._clients = 5
    with pytest.raises(InputError, match="needs 3 clients"):
        member.reply_to(invite(clients, 0, bytes(7) + b"1", seats=(0, 1)))

"""A round of secure aggregation without a network: the sum is exact, also with lost members."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfedhp.core.types import Clock
from sfedhp.privacy import masks
from sfedhp.privacy.ring import MaskedFormat, SecureOptions
from sfedhp.privacy.secure_member import SecureMember, least_members
from sfedhp.privacy.secure_messages import AttemptError, PeerError, context_of, lengths
from sfedhp.privacy.secure_sum import SecureSum

RUN, CLOCK, OPTIONS = "0123456789abcdef", Clock(3, 1), SecureOptions(10.0, 1e-6)
SIZE = 6


class Round:
    """All members of a server, and the server."""

    def __init__(self, members=5, threshold=0, seed=0):
        self.channels = [masks.new_key() for _ in range(members)]
        self.registered = {seat: masks.public_bytes(key) for seat, key in enumerate(self.channels)}
        random = torch.Generator().manual_seed(seed)
        self.weights = torch.randint(1, 100, (members,), generator=random).double()
        self.changes = torch.randn(members, SIZE, generator=random)
        self.statistics = torch.rand(members, 2, generator=random)
        self.server = SecureSum(RUN, CLOCK, range(members), least_members(threshold, members))
        self.members = {seat: self.member(seat) for seat in range(members)}

    def member(self, seat):
        peers = {other: key for other, key in self.registered.items() if other != seat}
        context = context_of(RUN, CLOCK, self.server.attempt)
        return SecureMember(
            context, self.server.attempt, seat, self.channels[seat], peers, self.server.threshold
        )

    def offer(self, *seats):
        for seat in seats:
            self.server.offers[seat] = self.server.read_offer(seat, self.members[seat].offer())
        self.form = MaskedFormat(OPTIONS, len(self.server.offers), SIZE, 2)
        self.total = float(sum(self.weights[seat] for seat in seats))

    def words(self, seat, roster):
        share = float(self.weights[seat]) / roster.total
        form = MaskedFormat(OPTIONS, len(roster.records) + 1, SIZE, 2)
        return form, form.encode(self.changes[seat], self.statistics[seat], share)

    def masked(self, seat):
        part = self.server.roster(seat, self.total)
        return self.members[seat].masked(part, lambda roster: self.words(seat, roster))

    def add(self, *seats):
        self.server.add({seat: self.server.read_masked(self.masked(seat), self.form) for seat in seats})

    def reveal(self, *seats):
        part = self.server.survivors()
        told = {seat: self.server.read_revealed(self.members[seat].reveal(part)) for seat in seats}
        return self.server.unmasked(told, self.form)

    def check(self, found):
        answered = self.server.answered
        share = float(self.weights[answered].sum()) / self.total
        mean, statistics = self.form.decode(found, len(answered), share)
        weights = self.weights[answered]
        expected = (self.changes[answered].double() * weights.unsqueeze(-1)).sum(0) / weights.sum()
        model, other = self.form.rings
        assert (mean - expected).abs().max() <= model.rounding(len(answered), share) + 1e-12
        means = self.statistics[answered].double().mean(0)
        assert (statistics - means).abs().max() <= other.rounding(
            len(answered), len(answered) / self.form.members
        )


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_sum_is_right_whoever_is_lost_and_when(data):
    members = data.draw(st.integers(2, 7), "members")
    case = Round(members, data.draw(st.integers(0, members), "threshold"), data.draw(st.integers(0, 99)))
    least, everybody = case.server.threshold, range(members)

    def some(seats, what):
        seats = list(seats)
        if len(seats) <= least:
            return seats
        return data.draw(st.lists(st.sampled_from(seats), min_size=least, unique=True), what)

    offered = some(everybody, "offered")
    case.offer(*offered)
    answered = some(offered, "answered")
    case.add(*answered)
    case.check(case.reveal(*some(answered, "told")))


def test_a_late_upload_of_a_member_that_was_given_up_stays_hidden():
    """The server has been told all masks with the others then; the member's own is left."""
    case = Round()
    case.offer(*range(5))
    late = case.masked(4)
    case.add(0, 1, 2, 3)
    case.check(case.reveal(0, 1, 2))
    words = case.server.read_masked(late, case.form)
    pair = case.members[4]._pair  # what the server could rebuild of the shares that it was told
    for other in range(4):
        context = case.members[4]._context + b"mask" + struct.pack("<II", other, 4)
        seed = masks.derive(pair, case.server.offers[other].public, context)
        masks.add(words, masks.mask(seed, case.form), 1)
    own = masks.mask(case.members[4]._own, case.form)
    plain = case.form.encode(case.changes[4], case.statistics[4], float(case.weights[4]) / case.total)
    assert not np.array_equal(case.form.pack(words), case.form.pack(plain))
    masks.add(words, own, -1)
    assert case.form.pack(words) == case.form.pack(plain)


def test_too_few_shares_give_no_sum():
    case = Round()
    case.offer(*range(5))
    case.add(0, 1, 2)
    assert case.reveal(0, 1) is None


@pytest.mark.parametrize("liar", [0, 3])
def test_one_wrong_share_does_not_spoil_the_sum(liar):
    case = Round()
    case.offer(*range(5))
    case.add(0, 1, 2, 3)
    part = case.server.survivors()
    told = {seat: case.server.read_revealed(case.members[seat].reveal(part)) for seat in range(4)}
    told[liar] = {seat: bytes(33) for seat in told[liar]}
    case.check(case.server.unmasked(told, case.form))


def test_shares_are_told_for_one_list_of_members_alone():
    case = Round()
    case.offer(*range(5))
    case.add(0, 1, 2, 3)
    part = case.server.survivors()
    assert case.members[0].reveal(part) == case.members[0].reveal(part)
    case.server.answered = [0, 1, 2]
    with pytest.raises(ValueError, match="for other members already"):
        case.members[0].reveal(case.server.survivors())


def test_what_a_member_refuses_to_tell():
    case = Round()
    case.offer(*range(5))
    with pytest.raises(ValueError, match="no upload"):
        case.members[0].reveal(case.server.survivors())
    case.add(0, 1, 2, 3)
    for answered in ([0, 1], [1, 2, 3], [0, 1, 2, 9]):
        case.server.answered = answered
        with pytest.raises(ValueError, match="a sum needs 3 members"):
            case.members[0].reveal(case.server.survivors())
    case.server.attempt = bytes(8)
    with pytest.raises(ValueError, match="no upload"):
        case.members[0].reveal(case.server.survivors())


def test_one_attempt_masks_one_upload():
    case = Round()
    case.offer(*range(5))
    assert case.masked(0) == case.masked(0)
    del case.server.offers[4]
    with pytest.raises(ValueError, match="a second one"):
        case.masked(0)
    for seat in (2, 3):
        del case.server.offers[seat]
    with pytest.raises(ValueError, match="a sum needs 3 members"):
        case.masked(1)


def test_offers_that_cannot_be_used_are_named():
    case = Round()
    case.offer(*range(5))
    offer = case.server.offers[3]
    case.server.offers[3] = offer._replace(sealed={**offer.sealed, 0: bytes(82)})
    with pytest.raises(PeerError, match="seats 3 cannot") as error:
        case.masked(0)
    assert error.value.seats == [3]
    # A key that another has put in its place is not the one that the shares are sealed with.
    case = Round()
    case.offer(*range(5))
    case.server.offers[2] = case.server.offers[2]._replace(public=case.registered[1])
    with pytest.raises(PeerError, match="seats 2 cannot"):
        case.masked(0)
    case.registered[1] = bytes(32)  # no key of the curve's main group
    with pytest.raises(PeerError, match="seats 1 cannot"):
        case.member(0).offer()


def test_every_attempt_has_other_masks():
    words = []
    for _ in range(2):
        case = Round()
        case.offer(*range(5))
        words.append(case.masked(0)[8:])
    assert len(np.flatnonzero(np.frombuffer(words[0], np.uint8) == np.frombuffer(words[1], np.uint8))) < 8


@pytest.mark.parametrize(("members", "answered"), [(2, 2), (5, 5), (5, 3)])
def test_lengths_follow_from_who_takes_part(members, answered):
    case, expected = Round(members), lengths(members, answered)
    assert len(case.server.invitation()) == expected.invitation
    assert len(case.members[0].offer()) == expected.offer
    case.offer(*range(members))
    assert len(case.server.roster(0, case.total)) == expected.roster
    assert len(case.masked(0)) == expected.masked + case.form.length
    case.add(*range(answered))
    assert len(case.server.survivors()) == expected.survivors
    assert len(case.members[0].reveal(case.server.survivors())) == expected.revealed


def test_malformed_parts_are_refused():
    case = Round(3)
    case.offer(0, 1, 2)
    offer, masked = case.members[0].offer(), case.masked(0)
    case.add(0, 1, 2)
    revealed = case.members[0].reveal(case.server.survivors())
    readers = {
        offer: lambda part: case.server.read_offer(0, part),
        masked: lambda part: case.server.read_masked(part, case.form),
        revealed: case.server.read_revealed,
    }
    for part, read in readers.items():
        for cut in (part[:5], part[:-1], part + b"x"):
            with pytest.raises(ValueError, match=r"cut off|each member|expected"):
                read(cut)
        with pytest.raises(AttemptError):
            read(bytes(8) + part[8:])
    with pytest.raises(ValueError, match="checksum"):
        case.server.read_masked(masked[:20] + bytes([masked[20] ^ 1]) + masked[21:], case.form)
    roster, survivors = case.server.roster(0, 1.0), case.server.survivors()
    for part in (roster[:-1], roster + roster[16:], roster[:10], b""):
        with pytest.raises(ValueError, match=r"cut off|twice"):
            case.member(0).masked(part, lambda roster: case.words(0, roster))
    for part in (survivors[:-1], survivors + survivors[8:], b""):
        with pytest.raises(ValueError, match=r"cut off|order"):
            case.members[0].reveal(part)


def test_the_least_number_of_members():
    assert [least_members(0, members) for members in (1, 2, 3, 4, 5)] == [2, 2, 2, 3, 3]
    assert least_members(4, 5) == 4

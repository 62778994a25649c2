"""A round of secure aggregation without a network: the sum is exact, also with lost members."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from sfedhp.core.types import Clock
from sfedhp.privacy import masks
from sfedhp.privacy.ring import MaskedFormat, SecureOptions
from sfedhp.privacy.secure_member import SecureMember, least_members, pair_context
from sfedhp.privacy.secure_messages import (
    AttemptError,
    PeerError,
    context_of,
    decode_confirmed,
    encode_confirmations,
    encode_seats,
    lengths,
    view_of,
)
from sfedhp.privacy.secure_sum import SecureSum
from sfedhp.privacy.shares import combine

RUN, CLOCK, OPTIONS = "0123456789abcdef", Clock(3, 1), SecureOptions(10.0, 1e-6)
SIZE, MODEL = 6, b"the model that all were sent"


class Round:
    """All members of a server, and the server."""

    def __init__(self, members=5, threshold=0, seed=0):
        self.channels = [masks.new_key() for _ in range(members)]
        self.registered = {seat: masks.public_bytes(key) for seat, key in enumerate(self.channels)}
        random = torch.Generator().manual_seed(seed)
        self.weights = torch.randint(1, 100, (members,), generator=random).double()
        self.changes = torch.randn(members, SIZE, generator=random)
        self.statistics = torch.rand(members, 2, generator=random)
        self.server = SecureSum(RUN, CLOCK, MODEL, range(members), least_members(threshold, members))
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
        self.server.total = float(sum(self.weights[seat] for seat in seats))

    def words(self, seat, roster):
        share = float(self.weights[seat]) / roster.total
        form = MaskedFormat(OPTIONS, len(roster.records) + 1, SIZE, 2)
        return form, form.encode(self.changes[seat], self.statistics[seat], share)

    def masked(self, seat):
        part = self.server.roster(seat)
        return self.members[seat].masked(MODEL, part, lambda roster: self.words(seat, roster))

    def add(self, *seats):
        self.server.add({seat: self.server.read_masked(self.masked(seat), self.form) for seat in seats})

    def confirmed(self, *seats):
        part = self.server.survivors()
        return {seat: self.server.read_confirmed(seat, self.members[seat].confirm(part)) for seat in seats}

    def told(self, confirmed, *seats):
        found = {}
        for seat in seats:
            part = self.members[seat].reveal(self.server.confirmations(seat, confirmed))
            found[seat] = self.server.read_revealed(part)
        return found

    def reveal(self, *seats):
        return self.server.unmasked(self.told(self.confirmed(*self.server.answered), *seats), self.form)

    def check(self, found):
        answered = self.server.answered
        share = float(self.weights[answered].sum()) / self.server.total
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
def test_the_sum_is_right_when_any_members_are_lost_at_any_time(data):
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
        context = pair_context(
            case.members[4]._context, view_of(MODEL, range(5), case.server.total), 4, other
        )
        seed = masks.derive(pair, case.server.offers[other].public, context)
        masks.add(words, masks.mask(seed, case.form), 1)
    own = masks.mask(case.members[4]._own, case.form)
    plain = case.form.encode(case.changes[4], case.statistics[4], float(case.weights[4]) / case.server.total)
    assert not np.array_equal(case.form.pack(words), case.form.pack(plain))
    masks.add(words, own, -1)
    assert case.form.pack(words) == case.form.pack(plain)


def test_too_few_shares_give_no_sum():
    case = Round()
    case.offer(*range(5))
    case.add(0, 1, 2)
    assert case.reveal(0, 1) is None
    assert not case.server.unsound, "nobody knows whose fault it is"


@pytest.mark.parametrize("liar", [0, 3])
def test_one_wrong_share_does_not_spoil_the_sum(liar):
    case = Round()
    case.offer(*range(5))
    case.add(0, 1, 2, 3)
    told = case.told(case.confirmed(*range(4)), *range(4))
    told[liar] = {seat: bytes(33) for seat in told[liar]}
    case.check(case.server.unmasked(told, case.form))


@pytest.mark.parametrize("lost", [False, True])
def test_a_member_whose_shares_give_no_secret_is_named(lost):
    """Others can open its shares, and cannot know that they are none."""
    case = Round()
    wrong = {seat + 1: secrets.token_bytes(33) for seat in range(5)}
    case.members[1]._shares = (wrong, wrong)
    case.offer(*range(5))
    here = [0, 2, 3, 4] if lost else range(5)
    case.add(*here)
    assert case.reveal(*here) is None
    assert case.server.unsound == {1}


def test_a_member_cannot_blame_another_one():
    """With no more shares than are needed, who told a wrong one may be the one that is wrong."""
    case = Round()
    case.offer(*range(5))
    case.add(*range(5))
    told = case.told(case.confirmed(*range(5)), 0, 2, 3)
    told[0][1] = bytes(33)
    assert case.server.unmasked(told, case.form) is None
    assert not case.server.unsound


def test_one_list_of_members_is_confirmed_alone():
    case = Round()
    case.offer(*range(5))
    case.add(0, 1, 2, 3)
    part = case.server.survivors()
    assert case.members[0].confirm(part) == case.members[0].confirm(part)
    case.server.answered = [0, 1, 2]
    with pytest.raises(ValueError, match="confirmed already"):
        case.members[0].confirm(case.server.survivors())


def test_what_a_member_refuses_to_confirm():
    case = Round()
    case.offer(*range(5))
    with pytest.raises(ValueError, match="no upload"):
        case.members[0].confirm(case.server.survivors())
    case.add(0, 1, 2, 3)
    for answered in ([0, 1], [1, 2, 3], [0, 1, 2, 9]):
        with pytest.raises(ValueError, match="a sum needs 3 members"):
            case.members[0].confirm(encode_seats(case.server.attempt, answered))
    with pytest.raises(ValueError, match="no upload"):
        case.members[0].confirm(encode_seats(bytes(8), [0, 1, 2, 3]))


def test_shares_need_as_many_members_that_confirm_the_same_list():
    case = Round()
    case.offer(*range(5))
    case.add(0, 1, 2, 3)
    with pytest.raises(ValueError, match="no list"):
        case.members[0].reveal(case.server.confirmations(0, {}))
    confirmed = case.confirmed(*range(4))
    for seats in ((), (1,), (0, 1), (1, 1)):
        some = {seat: confirmed[seat] for seat in seats}
        with pytest.raises(ValueError, match=r"members confirm who has uploaded, and 3 have to"):
            case.members[0].reveal(case.server.confirmations(0, some))
    for_others = {seat: {0: confirmed[seat][3 - (seat == 3)]} for seat in (1, 2, 3)}
    with pytest.raises(ValueError, match="1 members confirm"):
        case.members[0].reveal(case.server.confirmations(0, for_others))
    wrong = confirmed | {3: dict.fromkeys(range(4), bytes(16))}  # one that lies does not spoil it
    assert case.members[0].reveal(case.server.confirmations(0, wrong))
    with pytest.raises(ValueError, match="no list"):
        case.members[0].reveal(bytes(8) + case.server.confirmations(0, confirmed)[8:])


def test_a_server_that_sends_different_lists_gets_no_shares():
    """Without confirmations it could rebuild the secrets for a sum of the first two alone."""
    case = Round()
    case.offer(*range(5))
    case.add(*range(5))
    lists = {0: [0, 1, 4], 1: [0, 1, 2], 2: [0, 1, 2], 3: [0, 1, 3], 4: [0, 1, 4]}
    attempt, confirmed = case.server.attempt, {}
    for seat, answered in lists.items():
        part = case.members[seat].confirm(encode_seats(attempt, answered))
        confirmed[seat] = decode_confirmed(part, attempt, [other for other in answered if other != seat])
    for seat in range(5):
        known = {other: told[seat] for other, told in confirmed.items() if other != seat and seat in told}
        with pytest.raises(ValueError, match=r"[12] members confirm"):
            case.members[seat].reveal(encode_confirmations(attempt, known))


@pytest.mark.parametrize(("threshold", "rebuilt"), [(3, True), (4, False)])
def test_how_many_accomplices_a_threshold_withstands(threshold, rebuilt):
    """One of five confirms to two halves of the others two lists: 2 t is n + c with the default."""
    case, lists = Round(5, threshold), ([0, 1, 4], [2, 3, 4])
    if threshold == 4:
        lists = ([0, 1, 2, 4], [0, 2, 3, 4])
    case.offer(*range(5))
    case.add(*range(5))
    attempt, ally = case.server.attempt, case.members[4]
    halves = {0: lists[0], 1: lists[0], 2: lists[1], 3: lists[1]}
    told = {}
    for seat, answered in halves.items():
        case.members[seat].confirm(encode_seats(attempt, answered))
    for seat, answered in halves.items():
        agree = {other: case.members[other] for other, same in halves.items() if same == answered}
        agree[4] = ally
        known = {
            other: member._confirmation(other, seat, seat, answered)
            for other, member in agree.items()
            if other != seat
        }
        part = encode_confirmations(attempt, known)
        if not rebuilt:
            with pytest.raises(ValueError, match="3 members confirm who has uploaded, and 4 have to"):
                case.members[seat].reveal(part)
            continue
        told[seat] = case.server.read_revealed(case.members[seat].reveal(part))
    if rebuilt:
        pair, own = ally._held[0]
        seed, key = (
            combine({1: told[0][0], 2: told[1][0], 5: own}),
            combine({3: told[2][0], 4: told[3][0], 5: pair}),
        )
        assert seed is not None
        assert key is not None
        assert masks.commitment(seed) == case.server.offers[0].commitment
        public = masks.public_bytes(X25519PrivateKey.from_private_bytes(key))
        assert public == case.server.offers[0].public


class _Forked(Round):
    """A server that tells some members something else than the others."""

    def masked_as(self, seat, model=MODEL, total=None):
        self.server.total, before = total or self.server.total, self.server.total
        part = self.server.roster(seat)
        self.server.total = before
        masked = self.members[seat].masked(model, part, lambda roster: self.words(seat, roster))
        return self.server.read_masked(masked, self.form)

    def sum_of(self, uploads):
        self.server.add(uploads)
        return self.form.decode(self.reveal(*uploads), len(uploads), 1.0)[0]


@pytest.mark.parametrize("change", [{"total": 1e9}, {"model": b"one with a gradient of zero"}])
def test_a_server_that_tells_members_other_models_or_weights_learns_nothing(change):
    """Else the sum could be made of one member's change, and of nothing of the others."""
    case = _Forked()
    case.offer(*range(5))
    mean = case.sum_of({seat: case.masked_as(seat, **(change if seat else {})) for seat in range(5)})
    ring, _ = case.form.rings
    largest = 2.0 ** (8 * ring.width - 1 - ring.fraction)
    assert mean.abs().max() > largest / 10, "masks are left in the sum"
    case = _Forked()
    case.offer(*range(5))
    everybody = case.sum_of({seat: case.masked_as(seat) for seat in range(5)})
    assert everybody.abs().max() < 5


def test_two_attempts_of_one_number_seal_with_other_keys():
    """The texts of two that share a key would tell their difference, and let a server forge a third."""
    case = Round(3)
    first, second = case.member(0).offer(), case.member(0).offer()
    case.members[0] = case.member(0)
    sealed = [case.server.read_offer(0, part).sealed[1] for part in (first, second)]
    shares = []
    for part in (first, second):
        offer = case.server.read_offer(0, part)
        key = masks.derive(
            case.channels[1],
            case.registered[0],
            context_of(RUN, CLOCK, case.server.attempt) + b"seal" + offer.public + bytes(4) + b"\1\0\0\0",
        )
        shares.append(masks.unseal(key, offer.sealed[1], offer.public + offer.commitment))

    def difference(one, other):
        return bytes(x ^ y for x, y in zip(one, other, strict=False))

    assert difference(*shares) != difference(*sealed)[: len(shares[0])]


def test_one_attempt_masks_one_upload():
    case = Round()
    case.offer(*range(5))
    assert case.masked(0) == case.masked(0)
    with pytest.raises(ValueError, match="a second one"):
        case.members[0].masked(b"another", case.server.roster(0), lambda roster: case.words(0, roster))
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
    assert len(case.server.roster(0)) == expected.roster
    assert len(case.masked(0)) == expected.masked + case.form.length
    case.add(*range(answered))
    assert len(case.server.survivors()) == expected.survivors
    confirmed = case.confirmed(*range(answered))
    assert len(case.members[0].confirm(case.server.survivors())) == expected.confirmed
    confirmations = case.server.confirmations(0, confirmed)
    assert len(confirmations) == expected.confirmations
    assert len(case.members[0].reveal(confirmations)) == expected.revealed


def test_malformed_parts_are_refused():
    case = Round(3)
    case.offer(0, 1, 2)
    offer, masked = case.members[0].offer(), case.masked(0)
    case.add(0, 1, 2)
    confirmed = case.members[0].confirm(case.server.survivors())
    confirmations = case.server.confirmations(0, case.confirmed(0, 1, 2))
    revealed = case.members[0].reveal(confirmations)
    readers = {
        offer: lambda part: case.server.read_offer(0, part),
        masked: lambda part: case.server.read_masked(part, case.form),
        confirmed: lambda part: case.server.read_confirmed(0, part),
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
    roster, survivors = case.server.roster(0), case.server.survivors()
    for part in (roster[:-1], roster + roster[16:], roster[:10], b""):
        with pytest.raises(ValueError, match=r"cut off|twice"):
            case.member(0).masked(MODEL, part, lambda roster: case.words(0, roster))
    for part in (survivors[:-1], survivors + survivors[8:], b""):
        with pytest.raises(ValueError, match=r"cut off|order"):
            case.members[0].confirm(part)
    for part in (confirmations[:-1], b""):
        with pytest.raises(ValueError, match="cut off"):
            case.members[0].reveal(part)


def test_the_least_number_of_members():
    assert [least_members(0, members) for members in (1, 2, 3, 4, 5)] == [2, 2, 2, 3, 3]
    assert least_members(4, 5) == 4

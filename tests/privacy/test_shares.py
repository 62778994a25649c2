"""Shares of a secret: enough of them give it, fewer say nothing, and wrong ones are found out."""

from __future__ import annotations

import itertools
import secrets

import pytest

from sfedhp.privacy.shares import SHARE_BYTES, combine, combine_checked, split


@pytest.mark.parametrize(("members", "threshold"), [(2, 2), (5, 3), (5, 5), (7, 1)])
def test_any_choice_of_enough_shares_gives_the_secret(members, threshold):
    secret = secrets.token_bytes(32)
    shares = split(secret, range(1, members + 1), threshold)
    assert {len(share) for share in shares.values()} == {SHARE_BYTES}
    for chosen in itertools.combinations(shares, threshold):
        assert combine({place: shares[place] for place in chosen}) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\x01"])
def test_every_secret_can_be_shared(secret):
    shares = split(secret, [3, 9, 200], 2)
    assert combine({3: shares[3], 200: shares[200]}) == secret


def test_too_few_shares_fit_every_secret():
    """With one share less, each secret has a polynomial through them: they cannot tell secrets apart."""
    secret, other = secrets.token_bytes(32), secrets.token_bytes(32)
    shares = split(secret, range(1, 6), 3)
    few = {place: shares[place] for place in (1, 2)}
    assert combine(few) != secret
    # A third share under which the same two belong to the other secret.
    lie = split(other, range(1, 6), 3)
    assert combine({1: lie[1], 2: lie[2], 3: lie[3]}) == other
    seen = {split(secret, [1], 3)[1] for _ in range(20)}
    assert len(seen) == 20


@pytest.mark.parametrize("liars", [(1,), (1, 2, 11)])
def test_a_wrong_share_of_many_is_left_out_wherever_it_is(liars):
    secret = secrets.token_bytes(32)
    shares = split(secret, range(1, 21), 11)
    bad = shares | dict.fromkeys(liars, bytes(33))
    assert combine_checked(bad, 11, lambda found: found == secret) == secret


def test_wrong_shares_are_left_out():
    secret = secrets.token_bytes(32)
    shares = split(secret, range(1, 6), 3)
    bad = shares | {1: bytes(33), 4: b"\xff" * 33}
    assert combine_checked(bad, 3, lambda found: found == secret) == secret
    assert combine_checked(bad | {2: bytes(33)}, 3, lambda found: found == secret) is None
    assert combine_checked({1: shares[1]}, 3, lambda found: True) is None

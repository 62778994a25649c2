"""What members claim is checked against what they reported, and against the limits of the federation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sfedhp._version import __version__
from sfedhp.deploy.messaging.acceptance import Acceptance, check_header
from sfedhp.deploy.messaging.member import Member
from sfedhp.deploy.messaging.protocol import NO_RUN, Envelope, Kind
from sfedhp.deploy.messaging.request import RefusedError

MODEL = torch.tensor([3.0, 4.0])


@pytest.fixture
def member():
    return Member("client-0-0", 0, 0.0, 1.0)


@pytest.mark.parametrize("claimed", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("equal", [True, False])
def test_a_weight_is_positive_and_finite(member, claimed, equal):
    with pytest.raises(RefusedError, match=r"its weight is"):
        Acceptance(equal_weights=equal).weight(member, claimed)


def test_a_member_with_another_config_is_refused_with_both_versions(member):
    """New config keys at their defaults keep the hash, and versions that differ in these alone fit."""
    hello = Envelope(Kind.HELLO, NO_RUN, "a" * 16, 0, metadata={"version": "7.0\x1b[2J"})
    check_header(hello, member, "a" * 16)
    with pytest.raises(RefusedError, match=rf"runs sfedhp 7\.0\\x1b\[2J, this server {__version__}"):
        check_header(hello, member, "b" * 16)
    with pytest.raises(RefusedError, match="of an unknown version"):
        check_header(replace(hello, metadata={}), member, "b" * 16)


def test_equal_is_equal(member):
    accept = Acceptance(equal_weights=True, rows_reported_once=True)
    assert accept.weight(member, 1.0) == 1.0
    with pytest.raises(RefusedError, match=r"every member of this method weighs 1"):
        accept.weight(member, 2.0)


@pytest.mark.parametrize("claimed", [1e30, 1e300, 1001.0])
def test_rows_are_bounded(member, claimed):
    accept = Acceptance(rows_reported_once=True, max_rows=1000)
    with pytest.raises(RefusedError, match=r"limits.max_rows"):
        accept.weight(member, claimed)
    with pytest.raises(RefusedError, match=r"limits.max_rows"):
        accept.hello(member, {"rows": [600, 300, 101]})
    accept.hello(member, {"rows": [600, 300, 100]})
    assert member.rows == [600, 300, 100]


def test_rows_are_reported_once(member):
    accept = Acceptance(rows_reported_once=True, max_rows=1000)
    accept.hello(member, {})
    accept.hello(member, {"rows": [10, 5, 0]})
    accept.hello(member, {"rows": [10, 5, 0]})
    assert accept.weight(member, 10.0) == 10.0
    with pytest.raises(RefusedError, match=r"it reported 10 rows"):
        accept.weight(member, 11.0)
    with pytest.raises(RefusedError, match=r"it reported 10 training rows, 5 test rows .* now 900"):
        accept.hello(member, {"rows": [900, 5, 0]})
    assert accept.weight(member, 10.0) == 10.0


def test_a_client_of_an_earlier_version_tells_its_rows_by_its_first_reply(member):
    accept = Acceptance(rows_reported_once=True, max_rows=1000)
    with pytest.raises(RefusedError, match=r"not a number of rows"):
        accept.weight(member, 7.5)
    assert accept.weight(member, 7.0) == 7.0
    with pytest.raises(RefusedError, match=r"it reported 7 rows"):
        accept.weight(member, 8.0)


def test_an_edge_weighs_what_its_clients_may_weigh_together(member):
    accept = Acceptance(max_rows=1000, clients=[["client-0-0", "client-0-1"]])
    assert accept.weight(member, 2000.0) == 2000.0
    assert accept.weight(member, 600.0) == 600.0, "some of its clients may be missing"
    with pytest.raises(RefusedError, match=r"limits.max_rows of the federation file allows 2000"):
        accept.weight(member, 2001.0)


def test_an_upload_is_not_far_from_what_was_sent():
    accept = Acceptance(max_change=10.0)
    accept.upload(MODEL + torch.tensor([0.0, 50.0]), MODEL)
    with pytest.raises(RefusedError, match=r"51 away .* limits.max_change .* allows 50"):
        accept.upload(MODEL + torch.tensor([0.0, 51.0]), MODEL)
    accept.upload(torch.tensor([10.0, 0.0]), torch.zeros(2))
    with pytest.raises(RefusedError, match=r"11 away .* allows 10"):
        accept.upload(torch.tensor([11.0, 0.0]), torch.zeros(2))
    with pytest.raises(RefusedError, match=r"away"):
        accept.upload(torch.full((2,), 3e38), MODEL)


def test_statistics_are_such_as_batch_norm_has():
    accept = Acceptance(variances=torch.tensor([False, True]))
    accept.upload(torch.cat([MODEL, torch.tensor([-2.0, 0.0])]), MODEL)
    with pytest.raises(RefusedError, match=r"negative"):
        accept.upload(torch.cat([MODEL, torch.tensor([-2.0, -0.1])]), MODEL)
    with pytest.raises(RefusedError, match=r"too large"):
        accept.upload(torch.cat([MODEL, torch.tensor([-3e38, 1.0])]), MODEL)


def test_scores_are_of_the_rows_that_were_reported(member):
    accept = Acceptance(rows_reported_once=True, max_rows=1000)
    accept.hello(member, {"rows": [10, 5, 0]})
    accept.scores(member, {"test": {"gm": [1, 5, 0.5]}, "train": {"loss": [1, 10, 0.5]}})
    with pytest.raises(RefusedError, match=r"of 900 test rows, but it reported 5"):
        accept.scores(member, {"test": {"gm": [0, 900, 0.5]}})
    with pytest.raises(RefusedError, match=r"limits.max_rows"):
        accept.scores(member, {"test": {"gm": [0, 10**15, 0.5]}})


def test_an_edge_reports_on_its_own_clients_alone(member):
    accept = Acceptance(max_rows=1000, clients=[["client-0-0"], ["client-1-0"]])
    accept.scores(member, {"clients": {"client-0-0": {"test": {"gm": [1, 5, 0.5]}}}})
    accept.hello(member, {"members": {"client-0-0": True}})
    with pytest.raises(RefusedError, match=r"client-1-0, which is not one of its clients"):
        accept.scores(member, {"clients": {"client-1-0": {"test": {"gm": [1, 5, 0.5]}}}})
    with pytest.raises(RefusedError, match=r"client-1-0, which is not one of its clients"):
        accept.hello(member, {"members": {"client-1-0": True}})
    with pytest.raises(RefusedError, match=r"limits.max_rows"):
        accept.scores(member, {"clients": {"client-0-0": {"test": {"gm": [1, 1001, 0.5]}}}})


def test_metadata_is_bounded_by_the_clients_it_can_be_about():
    lone = Acceptance().metadata_bytes(0)
    edge = Acceptance(clients=[["a"] * 100]).metadata_bytes(0)
    assert lone[Kind.HELLO] == 2**12
    assert all(edge[kind] > lone[kind] for kind in (Kind.HELLO, Kind.REPLY, Kind.SCORES))
    assert Kind.WORK not in lone, "no member sends requests"

"""One false loss ends no run; a loss that explodes at most clients does."""

from __future__ import annotations

import math

import pytest

from sfedhp.deploy.roles.loss_watch import LossWatch


def reports(*losses):
    return {f"client-{i}": {"train": {"loss": [0, 10, 10 * loss]}} for i, loss in enumerate(losses)}


@pytest.mark.parametrize("false", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_one_of_three_is_not_most(false):
    watch = LossWatch()
    for losses in ((1.0, 1.0, false), (1.1, 0.9, false), (0.5, 0.4, 1.0)):
        watch.note(reports(*losses))
        assert not watch.most_exploded()


@pytest.mark.parametrize("later", [math.nan, math.inf, 101.0])
def test_most_clients_decide(later):
    watch = LossWatch()
    watch.note(reports(1.0, 1.0, 1.0))
    watch.note(reports(later, later, 1.0))
    assert watch.most_exploded()
    watch.note(reports(2.0, 2.0, 2.0))
    assert not watch.most_exploded()


def test_without_reports_nothing_is_known():
    watch = LossWatch()
    watch.note({"client-0": {}, "client-1": {"train": {"loss": [0, 0, 0.0]}}})
    assert not watch.most_exploded()


def test_one_of_two_is_not_most_and_a_lone_client_is():
    watch = LossWatch()
    watch.note(reports(1.0, math.nan))
    assert not watch.most_exploded()
    watch = LossWatch()
    watch.note(reports(math.nan))
    assert watch.most_exploded()


def test_one_that_reports_while_the_others_are_away_is_not_most():
    watch = LossWatch()
    watch.note(reports(1.0, 1.0, 1.0))
    watch.note(reports(math.nan))
    assert not watch.most_exploded()
    watch.note({"client-2": reports(1.0, 1.0, math.nan)["client-2"]})
    assert watch.most_exploded(), "two of three by now"

"""Robust rules against NumPy, one server at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfedhp.core.aggregation import AggregationOptions, aggregate, trim
from sfedhp.core.vectors import weighted_mean

MEDIAN = AggregationOptions("median")
TRIMMED = AggregationOptions("trimmed-mean", 0.2)


def trimmed_mean(values, weights, share):
    """By the book: sort each coordinate, drop both ends, average the rest."""
    found = []
    for column in values.T:
        order = np.argsort(column, kind="stable")
        cut = min(int(share * len(order) + 1e-9), (len(order) - 1) // 2)
        kept = order[cut : len(order) - cut]
        found.append((column[kept] * weights[kept]).sum() / weights[kept].sum())
    return np.array(found)


@st.composite
def servers(draw):
    members, d = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 10**6))
    random = np.random.default_rng(seed)
    values = random.normal(size=(members, d)).round(1)  # with ties
    present = random.random(members) < 0.7
    present[random.integers(members)] = True
    return values, random.integers(1, 5, members).astype(float), present


@settings(max_examples=60, deadline=None)
@given(servers(), st.sampled_from([0.0, 0.1, 0.2, 0.34, 0.5]))
def test_the_mean_of_what_is_left_is_the_robust_one(server, share):
    values, weights, present = server
    uploads = torch.from_numpy(np.where(present[:, None], values, np.nan))
    zeroed = torch.from_numpy(np.where(present, weights, 0.0))
    for rule, expected in (
        (MEDIAN, np.median(values[present], axis=0)),
        (AggregationOptions("trimmed-mean", share), trimmed_mean(values[present], weights[present], share)),
    ):
        found, cut = aggregate(rule, uploads, zeroed, torch.zeros_like(uploads))
        assert weighted_mean(found, zeroed).numpy() == pytest.approx(expected, abs=1e-12)
        assert not cut.trimmed[~torch.from_numpy(present)].any()


def test_a_stack_is_as_each_of_its_servers():
    torch.manual_seed(1)
    uploads, sent = torch.randn(3, 2, 5, 7), torch.randn(3, 2, 5, 7)
    weights = torch.randint(0, 4, (3, 2, 5)).float()
    for options in (MEDIAN, TRIMMED, AggregationOptions("trimmed-mean", 0.4, 1.5)):
        together, cut = aggregate(options, uploads, weights, sent)
        for run in range(3):
            for edge in range(2):
                alone, own = aggregate(options, uploads[run, edge], weights[run, edge], sent[run, edge])
                assert torch.equal(together[run, edge], alone)
                assert torch.equal(cut.trimmed[run, edge], own.trimmed)
                assert torch.equal(cut.clipped[run, edge], own.clipped)


def test_who_was_trimmed_how_much():
    uploads = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [1e30, -1e30]])
    found, cut = aggregate(TRIMMED, uploads, torch.ones(5), torch.zeros(5, 2))
    assert cut.trimmed.tolist() == [0.5, 0.0, 0.0, 0.5, 1.0]
    assert torch.equal(weighted_mean(found, torch.ones(5)), torch.tensor([2.0, 1.0]))
    assert torch.equal(found[1], uploads[1]), "what is not cut stays its member's"


def test_a_change_is_shortened_to_a_multiple_of_the_median():
    sent = torch.tensor([[1.0, 1.0]]).expand(4, 2)
    change = torch.tensor([[3.0, 4.0], [0.0, 5.0], [-5.0, 0.0], [0.0, 5000.0]])
    found, cut = aggregate(AggregationOptions(clip=2.0), sent + change, torch.ones(4), sent)
    assert cut.clipped.tolist() == [False, False, False, True]
    assert torch.equal(found[:3], (sent + change)[:3])
    assert found[3].tolist() == pytest.approx([1.0, 11.0])
    overflowing = torch.tensor([[3.0, 4.0], [0.0, 5.0], [-5.0, 0.0], [3e38, 3e38]])
    found, cut = aggregate(AggregationOptions(clip=2.0), overflowing, torch.ones(4), sent)
    assert torch.isfinite(found).all()
    assert cut.clipped[3]


def test_nothing_is_read_of_those_who_are_absent():
    uploads = torch.tensor([[1.0], [torch.nan], [3.0]])
    weights = torch.tensor([1.0, 0.0, 1.0])
    for options in (MEDIAN, TRIMMED, AggregationOptions(clip=1.0), AggregationOptions("median", clip=1.0)):
        found, _ = aggregate(options, uploads, weights, torch.zeros(3, 1))
        assert torch.isfinite(weighted_mean(found, weights)).all()
    none = torch.zeros(3)
    assert torch.isfinite(aggregate(MEDIAN, uploads, none, torch.zeros(3, 1))[0]).all()


def test_the_mean_is_left_alone():
    options = AggregationOptions()
    assert not options.robust
    values = torch.randn(4, 3)
    found, share = trim(options, values, torch.ones(4))
    assert found is values
    assert not share.any()
    assert trim(MEDIAN, values[:, :0], torch.ones(4))[0].shape == (4, 0), "a model without statistics"

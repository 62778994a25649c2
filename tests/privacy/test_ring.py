"""Words of a ring: sums are exact, means are as near as promised, and nothing overflows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfedhp.core.errors import InputError
from sfedhp.privacy.ring import MaskedFormat, Ring, SecureOptions, mean_of_words

OPTIONS = SecureOptions(10.0, 1e-6)


@given(
    bound=st.floats(1e-3, 1e4),
    resolution=st.floats(1e-7, 1e-2),
    weights=st.lists(st.integers(1, 10**6), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_a_mean_of_words_is_as_near_as_promised(bound, resolution, weights, seed):
    try:
        ring = Ring.of(bound, resolution, len(weights))
    except InputError:
        assert 2 * bound * len(weights) / resolution > 2**53
        return
    random = np.random.default_rng(seed)
    values = torch.from_numpy(random.uniform(-bound, bound, (len(weights), 5)))
    values[:, 0], values[:, 1] = bound, -bound  # the largest sums there are
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    words = ring.encode(values, shares.unsqueeze(-1))
    assert words.sum(0).abs().max() < 2 ** (8 * ring.width - 1)
    answered = torch.from_numpy(random.random(len(weights)) < 0.7)
    answered[0] = True
    expected = (values[answered] * shares[answered].unsqueeze(-1)).sum(0) / shares[answered].sum()
    found = mean_of_words(ring, values, torch.where(answered, shares, 0.0))
    allowed = ring.rounding(int(answered.sum()), float(shares[answered].sum()))
    assert (found - expected).abs().max() <= allowed + 1e-14 * bound / shares[answered].sum()
    assert ring.rounding(len(weights), 1.0) <= resolution / 2


def test_the_width_follows_from_bound_resolution_and_members():
    assert Ring.of(10, 1e-6, 5).width == 4
    assert Ring.of(10, 1e-6, 128).width == 4
    assert Ring.of(10, 1e-6, 256).width == 5
    assert Ring.of(1, 1e-2, 5).width == 2
    assert Ring.of(256, 1e-6, 5).width == 5
    # What is left of the last byte goes into finer steps.
    assert Ring.of(10, 1e-6, 5).rounding(5, 1.0) < 2e-8
    with pytest.raises(InputError, match="raise the resolution"):
        Ring.of(1e9, 1e-9, 5)


@pytest.mark.parametrize("width", range(1, 8))
def test_bytes_and_words_are_the_same_numbers(width):
    ring = Ring(width, 3, 1.0)
    words = np.random.default_rng(0).integers(0, 2**63, 50, dtype=np.uint64) * np.uint64(2)
    data = ring.pack(words)
    assert len(data) == 50 * width
    assert np.array_equal(ring.unpack(data), words & np.uint64(2 ** (8 * width) - 1))
    signed = torch.arange(-30, 30)
    assert torch.equal(ring.centered(ring.unpack(ring.pack(signed.numpy().view(np.uint64)))), signed)


def test_what_is_larger_than_the_bound_is_cut():
    ring = Ring.of(2.0, 1e-6, 3)
    values = torch.tensor([[100.0, -100.0, 1.0]]).expand(3, 3)
    found = mean_of_words(ring, values, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert found.tolist() == pytest.approx([2.0, -2.0, 1.0], abs=1e-6)


def test_of_a_member_without_a_share_nothing_is_read():
    ring = Ring.of(2.0, 1e-6, 2)
    values = torch.tensor([[0.5, 0.25], [torch.nan, torch.inf]])
    assert mean_of_words(ring, values, torch.tensor([1.0, 0.0])).tolist() == [0.5, 0.25]
    assert mean_of_words(ring, values, torch.tensor([0.0, 0.0])).tolist() == [0.0, 0.0]
    assert mean_of_words(ring, values, torch.tensor([0.5, 0.5])).isnan().all()


def test_large_stacks_are_rounded_in_parts(monkeypatch):
    ring, values = Ring.of(2.0, 1e-6, 3), torch.randn(4, 3, 7)
    shares = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    whole = mean_of_words(ring, values, shares)
    monkeypatch.setattr("sfedhp.privacy.ring._COLUMNS", 24)
    assert torch.equal(mean_of_words(ring, values, shares), whole)
    assert mean_of_words(ring, values[..., :0], shares).shape == (4, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_members_words_are_those_of_the_stack(dtype):
    form = MaskedFormat(OPTIONS, 3, 6, 2)
    change, statistics = torch.randn(3, 6, dtype=dtype), 100 * torch.rand(3, 2, dtype=dtype)
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    total = [np.zeros(6, np.uint64), np.zeros(2, np.uint64)]
    for member in range(3):
        words = form.encode(change[member], statistics[member], float(shares[member]))
        data = form.pack(words)
        assert len(data) == form.length == 4 * 6 + 6 * 2
        for each, more in zip(total, form.unpack(data), strict=True):
            each += more
    mean, means = form.decode(total, 3, 1.0)
    model, other = form.rings
    assert torch.equal(mean, mean_of_words(model, change, shares))
    assert torch.allclose(means, statistics.double().mean(0), atol=1e-6)
    assert torch.equal(means, mean_of_words(other, statistics, torch.full((3,), 1 / 3, dtype=torch.float64)))

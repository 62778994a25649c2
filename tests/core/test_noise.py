"""The noise of differential privacy: its distribution, its independence, and when it repeats."""

import math

import pytest
import torch

from sfedhp.core.noise import KEYED, SecretNormals

SOURCES = [KEYED, SecretNormals(b"a secret of the test, 32 bytes..")]


@pytest.mark.parametrize("source", SOURCES, ids=["keyed", "secret"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_standard_normal(source, dtype):
    drawn = source(torch.arange(8), 50_001, dtype).double()
    assert drawn.shape == (8, 50_001)
    count = drawn.numel()
    assert abs(drawn.mean()) < 4 / math.sqrt(count)
    assert abs(drawn.var() - 1) < 4 * math.sqrt(2 / count)
    assert abs((drawn**3).mean()) < 4 * math.sqrt(15 / count)
    assert abs((drawn**4).mean() - 3) < 4 * math.sqrt(96 / count)
    ranked = drawn.flatten().sort().values
    expected = torch.special.ndtr(ranked)
    gap = (expected - (torch.arange(count) + 0.5) / count).abs().max()
    assert gap < 1.95 / math.sqrt(count)  # Kolmogorov and Smirnov, one in a thousand


@pytest.mark.parametrize("source", SOURCES, ids=["keyed", "secret"])
def test_numbers_of_other_keys_and_places_are_independent(source):
    drawn = source(torch.arange(6), 40_000, torch.float64)
    limit = 4.5 / math.sqrt(40_000)
    assert (torch.corrcoef(drawn) - torch.eye(6)).abs().max() < limit
    assert (torch.corrcoef(drawn.square()) - torch.eye(6)).abs().max() < limit
    first, second = drawn[0, :20_000], drawn[0, 20_000:]  # the two halves of each pair
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 4.5 / math.sqrt(20_000)
    assert abs((first[1:] * first[:-1]).mean()) < 4.5 / math.sqrt(20_000)


@pytest.mark.parametrize("source", SOURCES, ids=["keyed", "secret"])
def test_a_key_alone_and_in_a_stack_draw_the_same(source):
    keys = torch.tensor([[3, 5], [7, -11]])
    stacked = source(keys, 9, torch.float32)
    assert stacked.shape == (2, 2, 9)
    assert torch.equal(stacked[1, 1], source(torch.tensor(-11), 9, torch.float32))
    assert not torch.equal(stacked[0, 0], stacked[0, 1])


def test_a_secret_decides_and_is_bound_to_what_it_protects():
    source, other = SecretNormals(b"1" * 32), SecretNormals(b"2" * 32)
    at, model = torch.tensor(5), torch.arange(4.0)
    assert not torch.equal(source(at, 6, torch.float32), other(at, 6, torch.float32))
    again = source.bound_to(model, at)(at, 6, torch.float32)
    assert torch.equal(again, source.bound_to(model.clone(), at)(at, 6, torch.float32))
    for values in ((model + 1e-7, at), (model, at + 1), (model.double(), at)):
        assert not torch.equal(again, source.bound_to(*values)(at, 6, torch.float32))
    assert "1" * 32 not in repr(source)


def test_draws_of_batches_are_as_secret_as_the_noise():
    keys = torch.tensor([1, 2])
    source = SecretNormals(b"1" * 32)
    assert torch.equal(source.stream(keys)[1], source.stream(keys[1]))
    assert not torch.equal(source.stream(keys), keys)
    assert not torch.equal(source.stream(keys), SecretNormals(b"2" * 32).stream(keys))
    assert KEYED.stream(keys) is keys
    assert KEYED.bound_to(keys) is KEYED

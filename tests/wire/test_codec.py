"""Messages give back what was encoded, to the bit, and are as short as promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.wire import DecodeError, decode, encode, encoded_length

HEADER = 32
DTYPES = [torch.float32, torch.float64]
DENSITIES = [0.0, 0.01, 0.2, 0.5, 0.9, 1.0]


def noise(size: int, dtype: torch.dtype, generator: np.random.Generator) -> Tensor:
    """Values with random bits, none of them NaN, infinite or +0.0."""
    if dtype == torch.float32:
        words = generator.integers(1, 2**32, size, dtype=np.uint32)
        words[(words & 0x7F800000) == 0x7F800000] ^= 0x00800000
        return torch.from_numpy(words.view(np.float32))
    long = generator.integers(1, 2**64, size, dtype=np.uint64)
    long[(long >> 52) & 0x7FF == 0x7FF] ^= 1 << 52
    return torch.from_numpy(long.view(np.float64))


def sparse(size: int, density: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = np.random.default_rng(seed)
    tensor = noise(size, dtype, generator)
    tensor[torch.from_numpy(generator.random(size) >= density)] = 0
    return tensor


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


def same(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(bits(one), bits(two))


def bound(tensor: Tensor) -> float:
    """Entropy of the positions plus all bits of the values, in bytes."""
    share = int(torch.count_nonzero(bits(tensor))) / len(tensor)
    entropy = -sum(p * math.log2(p) for p in (share, 1 - share) if p)
    return len(tensor) * (entropy + 8 * tensor.element_size() * share) / 8


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(0, 3000),
    density=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
    kept=st.sampled_from([None, 0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_round_trip_length_and_bound(
    size: int, density: float, dtype: torch.dtype, kept: float | None, seed: int
) -> None:
    tensor = sparse(size, density, dtype, seed)
    base = None
    if kept is not None:
        stays = torch.from_numpy(np.random.default_rng(seed + 1).random(size) < kept)
        base = torch.where(stays, tensor, sparse(size, density, dtype, seed + 2))
    data = encode(tensor, base)
    assert same(decode(data, base, size=size), tensor)
    assert encoded_length(tensor, base) == len(data)
    assert len(data) <= tensor.element_size() * size + 64
    assert len(data) <= len(encode(tensor))


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(
        st.floats(allow_nan=False, allow_infinity=False, width=32) | st.sampled_from([0.0, -0.0, 1e-45])
    ),
    dtype=st.sampled_from(DTYPES),
    against=st.booleans(),
)
def test_round_trip_of_any_values(values: list[float], dtype: torch.dtype, against: bool) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    base = tensor.roll(1) if against else None
    assert same(decode(encode(tensor, base), base), tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", DENSITIES)
def test_round_trip_of_a_million(density: float, dtype: torch.dtype) -> None:
    tensor = sparse(1_000_003, density, dtype)
    assert same(decode(encode(tensor)), tensor)


def test_round_trip_of_ten_million() -> None:
    tensor = torch.zeros(10_000_000)
    tensor[::97] = torch.randn(len(tensor[::97]), generator=torch.Generator().manual_seed(0))
    data = encode(tensor)
    assert same(decode(data, size=10_000_000), tensor)
    assert len(data) < bound(tensor)


def test_only_positive_zero_is_left_out() -> None:
    tensor = torch.zeros(1000)
    empty = len(encode(tensor))
    assert empty == HEADER
    tensor[5] = -0.0
    assert len(encode(tensor)) > empty
    assert math.copysign(1, decode(encode(tensor))[5].item()) == -1


@pytest.mark.parametrize("size", [79_510, 494_710])
@pytest.mark.parametrize("density", [0.01, 0.05, 0.2, 0.5])
def test_random_positions_cost_little_more_than_their_entropy(density: float, size: int) -> None:
    tensor = sparse(size, density, torch.float32)
    # Noise is the worst case, and the header counts: everything else is shorter.
    assert len(encode(tensor)) <= 1.02 * bound(tensor)


@pytest.mark.parametrize("density", [0.1, 0.3, 0.4, 0.6, 0.8, 0.95, 0.999])
def test_other_densities_stay_close_too(density: float) -> None:
    tensor = sparse(79_510, density, torch.float32)
    assert len(encode(tensor)) <= 1.02 * bound(tensor)


def test_a_few_zeros_are_sent_as_values() -> None:
    tensor = sparse(100, 1.0, torch.float32)
    tensor[50] = 0
    base = sparse(100, 1.0, torch.float32, seed=1)
    base[70] = tensor[70]
    assert len(encode(tensor)) == HEADER + 4 * 100
    assert same(decode(encode(tensor)), tensor)
    assert len(encode(tensor, base)) <= HEADER + 4 * 100


def test_dead_rows_and_columns_are_cheaper_than_random_positions() -> None:
    generator = np.random.default_rng(0)
    rows, columns = generator.random((100, 1)) < 0.5, generator.random((1, 784)) < 0.6
    alive = torch.from_numpy((rows & columns & (generator.random((100, 784)) < 0.9)).ravel())
    tensor = torch.where(alive, noise(78_400, torch.float32, generator), torch.tensor(0.0))
    positions = len(encode(tensor)) - 4 * int(alive.sum())
    assert positions <= 0.75 * (bound(tensor) - 4 * int(alive.sum()))


def test_exponents_of_ordinary_weights_are_compressed() -> None:
    tensor = torch.randn(50_000, generator=torch.Generator().manual_seed(0)) * 0.05
    assert len(encode(tensor)) <= 0.85 * 4 * len(tensor)


def test_small_changes_of_all_weights_cost_less_than_the_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(20_000, generator=generator)
    base[torch.rand(20_000, generator=generator) < 0.8] = 0
    tensor = base * (1 + 1e-3 * torch.randn(20_000, generator=generator))
    data = encode(tensor, base)
    assert same(decode(data, base), tensor)
    assert len(data) <= 0.75 * len(encode(tensor))


def test_few_changes_cost_only_themselves() -> None:
    base = sparse(50_000, 1.0, torch.float64)
    tensor = base.clone()
    tensor[[3, 40_000]] = torch.tensor([1.0, 0.0], dtype=torch.float64)
    data = encode(tensor, base)
    assert len(data) <= HEADER + 2 * 8 + 16
    assert same(decode(data, base), tensor)


def test_a_base_is_not_used_where_it_does_not_help() -> None:
    tensor, base = sparse(1000, 0.1, torch.float32), sparse(1000, 1.0, torch.float32, seed=1)
    data = encode(tensor, base)
    assert data == encode(tensor)
    assert same(decode(data), tensor)


def test_inputs_stay_and_any_layout_is_taken() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).T[1].requires_grad_()
    before = tensor.detach().clone()
    data = encode(tensor)
    assert torch.equal(tensor, before)
    assert torch.equal(decode(bytearray(data)), before)
    result = decode(memoryview(data))
    result += 1  # the receiver may write into what it got
    assert not result.requires_grad


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    tensor = torch.tensor([1.0, bad])
    with pytest.raises(InputError, match="model holds NaN or an infinity"):
        encode(tensor)
    with pytest.raises(InputError, match="base holds NaN or an infinity"):
        encode(torch.ones(2), tensor)
    with pytest.raises(InputError):
        encoded_length(tensor)


@pytest.mark.parametrize(
    "tensor", [torch.ones(2, 2), torch.ones(()), torch.ones(3, dtype=torch.int64), torch.ones(3).half()]
)
def test_only_flat_float32_and_float64_are_sent(tensor: Tensor) -> None:
    with pytest.raises(InputError, match="send flat float32 or float64"):
        encode(tensor)


def test_a_tensor_beyond_the_format_is_refused() -> None:
    with pytest.raises(InputError, match="at most 4294967295"):
        encode(torch.zeros(1).expand(2**32))


@pytest.mark.parametrize("base", [torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_a_base_of_another_kind_is_refused(base: Tensor) -> None:
    with pytest.raises(InputError, match="needs two alike"):
        encode(torch.ones(2), base)


def test_a_difference_needs_its_own_base() -> None:
    base = sparse(500, 1.0, torch.float32)
    tensor = base.clone()
    tensor[7] = 3.0
    data = encode(tensor, base)
    with pytest.raises(DecodeError, match="give the base"):
        decode(data)
    with pytest.raises(DecodeError, match="another base"):
        decode(data, tensor)
    for other in (base.double(), base[1:], base.reshape(2, 250)):
        with pytest.raises(DecodeError, match="the base given is"):
            decode(data, other)

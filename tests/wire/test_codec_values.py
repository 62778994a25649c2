"""Shorter values: within the stated error, zeros exact, and never silently infinite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.wire import decode, encode, encoded_length

BLOCK = 256
# relative and absolute part of each bound, as the docs state them
BOUNDS = {"float32": (2**-24, 2**-150), "float16": (2**-11, 2**-25), "bfloat16": (2**-8, 2**-134)}


def model(size: int, dtype: torch.dtype, seed: int, spread: float = 3.0) -> Tensor:
    """Weights over many orders of magnitude, a third of them zero."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(size) * np.exp(spread * generator.standard_normal(size))
    values[generator.random(size) < 1 / 3] = 0
    return torch.from_numpy(np.clip(values, -6e4, 6e4)).to(dtype)


def allowed(tensor: Tensor, values: str, sent: Tensor) -> Tensor:
    """The largest error of each value; `sent` marks what int8 blocks are made of."""
    if values != "int8":
        relative, absolute = BOUNDS[values]
        return tensor.double().abs() * relative + absolute
    peaks = torch.zeros(len(tensor), dtype=torch.float64)
    chosen = tensor[sent].double().abs()
    peaks[sent] = torch.cat(
        [block.max().expand(len(block)) for block in chosen.split(BLOCK) if len(block)] or [chosen]
    )
    return peaks / 253 + 2**-150


@settings(max_examples=120, deadline=None)
@given(
    size=st.integers(0, 2000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    values=st.sampled_from(["float32", "float16", "bfloat16", "int8"]),
    spread=st.sampled_from([0.1, 3.0, 20.0]),
    kept=st.sampled_from([None, 0.3, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_errors_stay_within_the_stated_bounds(
    size: int, dtype: torch.dtype, values: str, spread: float, kept: float | None, seed: int
) -> None:
    tensor = model(size, dtype, seed, spread)
    base = None
    sent = tensor != 0
    if kept is not None:
        stays = torch.from_numpy(np.random.default_rng(seed + 1).random(size) < kept)
        base = torch.where(stays, tensor, model(size, dtype, seed + 2, spread))
    data = encode(tensor, base, values)
    if base is not None and data[7]:  # a difference: int8 blocks are made of what changed
        sent = tensor != base
    result = decode(data, base, size)
    assert result.dtype == dtype
    assert bool(((result.double() - tensor.double()).abs() <= allowed(tensor, values, sent)).all())
    assert bool((result[tensor == 0] == 0).all())
    assert encoded_length(tensor, base, values) == len(data)


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_rounding_is_to_the_nearest_with_and_without_a_base(values: str) -> None:
    tensor, base = model(5000, torch.float32, 0), model(5000, torch.float32, 1)
    nearest = tensor.to(getattr(torch, values)).float()
    assert torch.equal(decode(encode(tensor, values=values)), nearest)
    near = tensor * 1.0001
    for other in (base, near):
        assert torch.equal(decode(encode(tensor, other, values), other), nearest)
    assert len(encode(tensor, near, values)) < len(encode(tensor, values=values))


def test_bfloat16_ties_go_to_even() -> None:
    tensor = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)])
    assert decode(encode(tensor, values="bfloat16")).tolist() == [1.0, 1 + 2**-6, -1.0]


def test_int8_keeps_what_a_base_already_has() -> None:
    base = model(3000, torch.float32, 0)
    tensor = base.clone()
    tensor[10:40] = torch.linspace(-1, 1, 30)
    data = encode(tensor, base, "int8")
    result = decode(data, base)
    assert data[7] == 1
    assert torch.equal(result[40:], base[40:])
    assert len(data) < 32 + 16 + 4 + 30


def test_shorter_values_are_shorter() -> None:
    tensor = model(20_000, torch.float64, 0, 0.1)
    lengths = [
        len(encode(tensor, values=values)) for values in (None, "float32", "float16", "bfloat16", "int8")
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 0.17 * lengths[0]


def test_the_own_type_of_a_tensor_is_exact() -> None:
    tensor = model(300, torch.float32, 0)
    assert encode(tensor, values="float32") == encode(tensor)


def test_the_smallest_numbers_survive_int8() -> None:
    tensor = torch.tensor([1e-45, 0.0, -1e-45])
    assert decode(encode(tensor, values="int8")).tolist() == tensor.tolist()
    tiny = torch.tensor([1e-300, 0.0], dtype=torch.float64)
    assert decode(encode(tiny, values="int8")).abs().max() <= 2**-150


@pytest.mark.parametrize(
    ("values", "dtype", "largest", "beyond"),
    [
        ("float16", torch.float32, 65_519.0, 65_520.0),
        ("bfloat16", torch.float32, 3.38e38, 3.4e38),
        ("float32", torch.float64, 3.4028235e38, 3.41e38),
        ("int8", torch.float64, 3.4028e38, 3.41e38),
    ],
)
def test_too_large_values_are_refused(values: str, dtype: torch.dtype, largest: float, beyond: float) -> None:
    assert torch.isfinite(decode(encode(torch.tensor([largest, 1.0], dtype=dtype), values=values))).all()
    with pytest.raises(InputError, match=f"too large for {values}"):
        encode(torch.tensor([-beyond, 1.0], dtype=dtype), values=values)


@pytest.mark.parametrize("values", ["float64", "exact", "half", ""])
def test_unknown_values_are_refused(values: str) -> None:
    with pytest.raises(InputError, match="is not known"):
        encode(torch.ones(3), values=values)

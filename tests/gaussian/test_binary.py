"""The binary classifier against Gibbs sampling and linear algebra written down a second time, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from polyagamma import random_polyagamma  # type: ignore[import-untyped]

from sfedhp.core.keys import key, uniform
from sfedhp.gaussian import binary, polyagamma
from sfedhp.gaussian.binary import Rows, augment, log_probability

Array = NDArray[np.float64]


def toy(rows: int, queries: int, seed: int = 3) -> tuple[Array, Array, Array]:
    """Directions in the plane with noisy signs: nothing here is certain."""
    draw = np.random.default_rng(seed)
    angles = draw.uniform(0, 2 * np.pi, rows)
    signs = np.where(draw.random(rows) < 1 / (1 + np.exp(-2 * np.sin(angles))), 1.0, -1.0)
    asked = np.linspace(0, 2 * np.pi, queries, endpoint=False)
    return _unit(angles), signs, _unit(asked)


def _unit(angles: Array) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def reference_kernel(first: Array, second: Array) -> Array:
    return 8.0 * np.exp(-0.5 * ((first[:, None, :] - second[None, :, :]) ** 2).sum(-1))


def reference_probability(features: Array, signs: Array, queries: Array, chains: int, steps: int) -> Array:
    """P(y* = 1) by long Gibbs chains: every matrix inverted outright, σ(f*) averaged over drawn f*."""
    draw = np.random.default_rng(11)
    matrix = reference_kernel(features, features) + 1e-3 * np.eye(len(features))
    precision = np.linalg.inv(matrix)
    cross = reference_kernel(queries, features) @ precision
    spread = np.sqrt(8.0 - (cross * reference_kernel(queries, features)).sum(-1))
    latent = draw.standard_normal((chains, len(features))) @ np.linalg.cholesky(matrix).T
    total, count = np.zeros(len(queries)), 0
    for step in range(steps):
        omega = random_polyagamma(1, latent, random_state=draw)
        posterior = np.linalg.inv(precision + omega[:, :, None] * np.eye(len(features)))
        noise = draw.standard_normal((chains, len(features), 1))
        latent = (posterior @ (signs / 2)[:, None] + np.linalg.cholesky(posterior) @ noise)[..., 0]
        if step >= 20:
            asked = latent @ cross.T + spread * draw.standard_normal((chains, len(queries)))
            total, count = total + (1 / (1 + np.exp(-asked))).sum(0), count + chains
    assert count >= 100_000
    return total / count


def stacked(*arrays: Array, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.from_numpy(array).to(dtype) for array in arrays]


def test_predictive_probability_is_that_of_a_long_gibbs_run() -> None:
    features, signs, queries = toy(20, 16)
    expected = reference_probability(features, signs, queries, chains=1000, steps=120)
    assert expected.min() < 0.25
    assert expected.max() > 0.85
    rows, asked = Rows(*stacked(features, signs)), stacked(queries)[0]
    omega = augment(rows, key(0, torch.arange(20)), chains=400, steps=5)
    _, plus = log_probability(rows, omega, asked)
    np.testing.assert_allclose(plus.exp().numpy(), expected, atol=0.02)
    # A hundred chains are enough for 0.02 with any seed, as the documentation says.
    for seed in range(5):
        _, plus = log_probability(rows, augment(rows, key(seed, torch.arange(20)), 100, 5), asked)
        np.testing.assert_allclose(plus.exp().numpy(), expected, atol=0.02)
    # The twenty chains of the default leave some noise of their own, and no bias.
    few = [
        log_probability(rows, augment(rows, key(seed, torch.arange(20)), 20, 5), asked)[1].exp()
        for seed in range(20)
    ]
    assert (few[0] - torch.from_numpy(expected)).abs().max() < 0.1
    np.testing.assert_allclose(torch.stack(few).mean(0), expected, atol=0.02)


def test_prediction_given_omega_is_the_textbook_s() -> None:
    features, signs, queries = toy(20, 6)
    omega = np.random.default_rng(2).uniform(0.05, 0.3, (3, 20))
    points, weights = np.polynomial.hermite.hermgauss(60)
    expected = np.zeros(6)
    for chain in omega:
        noisy = np.linalg.inv(reference_kernel(features, features) + 1e-3 * np.eye(20) + np.diag(1 / chain))
        cross = reference_kernel(queries, features)
        mean = cross @ noisy @ (signs / 2 / chain)
        spread = np.sqrt(8.0 - np.einsum("ij,jk,ik->i", cross, noisy, cross))
        latent = mean[:, None] + np.sqrt(2) * spread[:, None] * points
        expected += (1 / (1 + np.exp(-latent))) @ weights / np.sqrt(np.pi) / 3
    minus, plus = log_probability(Rows(*stacked(features, signs)), *stacked(omega, queries))
    np.testing.assert_allclose(plus.exp(), expected, atol=1e-5)  # 20 points of quadrature against 60
    np.testing.assert_allclose(minus.exp() + plus.exp(), 1.0, rtol=1e-12)


def test_turning_all_signs_turns_the_prediction() -> None:
    features, signs, queries = stacked(*toy(20, 6))
    omega = augment(Rows(features, signs), key(0, torch.arange(20)), 4, 2)
    minus, plus = log_probability(Rows(features, signs), omega, queries)
    turned_minus, turned_plus = log_probability(Rows(features, -signs), omega, queries)
    np.testing.assert_allclose(turned_minus, plus, rtol=1e-10)
    np.testing.assert_allclose(turned_plus, minus, rtol=1e-10)


def test_latent_values_given_omega_have_the_textbook_s_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    features, signs, _ = toy(6, 1)
    omega = np.linspace(0.1, 0.4, 6)
    latents: list[torch.Tensor] = []

    def fixed(tilt: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        latents.append(tilt)
        return torch.from_numpy(omega).expand(tilt.shape)

    monkeypatch.setattr(polyagamma, "draw", fixed)
    augment(Rows(*stacked(features, signs)), key(0, torch.arange(6)), chains=20_000, steps=1)
    matrix = reference_kernel(features, features) + 1e-3 * np.eye(6)
    posterior = np.linalg.inv(np.linalg.inv(matrix) + np.diag(omega))
    prior, latent = latents[0].numpy(), latents[1].numpy()
    np.testing.assert_allclose(np.cov(prior.T, bias=True), matrix, atol=0.3)
    np.testing.assert_allclose(latent.mean(0), posterior @ signs / 2, atol=0.06)
    np.testing.assert_allclose(np.cov(latent.T, bias=True), posterior, atol=0.12)


def test_blocks_of_chains_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features, signs, queries = stacked(*toy(20, 6))
    keys = key(0, torch.arange(20))
    whole = augment(Rows(features, signs), keys, 7, 3)
    expected = log_probability(Rows(features, signs), whole, queries)
    monkeypatch.setattr(binary, "CPU_BLOCK", 3 * 400)
    parts = augment(Rows(features, signs), keys, 7, 3)
    np.testing.assert_allclose(parts, whole, rtol=1e-9)
    for ours, theirs in zip(log_probability(Rows(features, signs), whole, queries), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_a_row_of_sign_zero_is_no_row_wherever_it_stands() -> None:
    features, signs, queries = stacked(*toy(12, 5))
    keys = key(0, torch.arange(12))
    wide, wide_signs, wide_keys = (
        torch.zeros(15, 2).double(),
        torch.zeros(15).double(),
        key(9, torch.arange(15)),
    )
    places = torch.tensor([0, 1, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14])
    wide[places], wide_signs[places], wide_keys[places] = features, signs, keys
    omega = augment(Rows(features, signs), keys, 3, 4)
    padded = augment(Rows(wide, wide_signs), wide_keys, 3, 4)
    np.testing.assert_allclose(padded[:, places], omega, rtol=1e-9)
    assert (padded.sum(0) == 0).sum() == 3
    for ours, theirs in zip(
        log_probability(Rows(wide, wide_signs), padded, queries),
        log_probability(Rows(features, signs), omega, queries),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_no_rows_at_all_give_the_prior() -> None:
    features, _, queries = stacked(*toy(4, 5))
    rows = Rows(features, torch.zeros(4).double())
    omega = augment(rows, key(0, torch.arange(4)), 3, 2)
    for side in log_probability(rows, omega, queries):
        np.testing.assert_allclose(side.exp(), 0.5, rtol=1e-12)


def test_single_precision_follows_double() -> None:
    features, signs, queries = toy(20, 16)
    answers = []
    for dtype in (torch.float32, torch.float64):
        rows, asked = Rows(*stacked(features, signs, dtype=dtype)), stacked(queries, dtype=dtype)[0]
        omega = augment(rows, key(0, torch.arange(20)), 20, 5)
        minus, plus = log_probability(rows, omega, asked)
        assert omega.dtype == minus.dtype == plus.dtype == dtype
        answers.append(plus.double())
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-3)


def test_gradient_reaches_the_features() -> None:
    features, signs, queries = stacked(*toy(8, 3))
    omega = augment(Rows(features, signs), key(0, torch.arange(8)), 2, 2)

    def probability(known: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        return log_probability(Rows(known, signs), omega, asked)[1]

    assert torch.autograd.gradcheck(probability, (features.requires_grad_(), queries.requires_grad_()))
    assert not augment(Rows(features, signs), key(0, torch.arange(8)), 2, 2).requires_grad


def test_no_two_draws_share_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    features, signs, _ = stacked(*toy(6, 1))
    seen: list[torch.Tensor] = []

    def recorded(keys: torch.Tensor) -> torch.Tensor:
        seen.append(keys.flatten())
        return uniform(keys)

    monkeypatch.setattr(binary, "uniform", recorded)
    monkeypatch.setattr(polyagamma, "uniform", recorded)
    augment(Rows(features, signs), key(0, torch.arange(6)), chains=5, steps=4)
    keys = torch.cat(seen)
    # Five starts from the prior, four steps of two normals each, five draws of ω of nine exponentials each.
    assert len(keys) == 6 * 5 * (1 + 4 * 2 + 5 * 9)
    assert len(keys.unique()) == len(keys)

"""The binary classifier against Gibbs sampling and linear algebra written down a second time, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sfedhp.core.keys import key, uniform
from sfedhp.gaussian import binary, polyagamma
from sfedhp.gaussian.binary import Rows, augment, log_probability, stratified
from tests.support.gibbs import reference_kernel, reference_probability, toy

Array = NDArray[np.float64]


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
    # The twenty independent chains of a training step leave some noise of their own, and no bias.
    keys = key(torch.arange(40).unsqueeze(-1), torch.arange(20))
    rows = Rows(*(tensor.expand(40, *tensor.shape) for tensor in rows))
    few, even = (
        log_probability(rows, augment(rows, keys, 20, 5, stratify=stratify), asked)[1].exp()
        for stratify in (False, True)
    )
    assert (few - torch.from_numpy(expected)).abs().max() < 0.1
    np.testing.assert_allclose(few.mean(0), expected, atol=0.01)
    # Spreading the draws over the chains takes a variance that is a few times smaller, and no bias either.
    np.testing.assert_allclose(even.mean(0), expected, atol=0.005)
    assert even.var(0).mean() < 0.25 * few.var(0).mean()


def test_stratified_numbers_are_one_in_each_part_and_random_otherwise() -> None:
    keys = key(3, torch.arange(5).unsqueeze(-1), torch.arange(4000))
    numbers = stratified(keys)
    parts = (5 * numbers).long()
    assert torch.equal(parts.sort(0).values, torch.arange(5).unsqueeze(-1).expand(5, 4000))
    assert len(parts.unique(dim=1).mT) == 120  # every order of the chains occurs
    for chain in numbers:  # uniform, whichever chain it is: Kolmogorov and Smirnov at 0.1 %
        ranks = (torch.arange(4000) + 0.5) / 4000
        assert (chain.sort().values - ranks).abs().max() < 1.95 / np.sqrt(4000)
    within = (5 * numbers - parts)[0]
    assert abs(np.corrcoef(within, parts[0])[0, 1]) < 4 / np.sqrt(4000)
    assert torch.equal(stratified(keys[:, 7:9]), numbers[:, 7:9])  # a row's draws are its own


def test_stratified_numbers_are_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "uniform", lambda keys: torch.full(keys.shape, 1 - 2**-53).double())
    assert stratified(key(0, torch.arange(40).unsqueeze(-1), torch.arange(3))).max() < 1


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

    def fixed(tilt: torch.Tensor, keys: torch.Tensor, numbers: object) -> torch.Tensor:
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


@pytest.mark.parametrize("stratify", [False, True])
def test_blocks_of_chains_change_nothing(stratify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    features, signs, queries = stacked(*toy(20, 6))
    keys = key(0, torch.arange(20))
    whole = augment(Rows(features, signs), keys, 7, 3, stratify=stratify)
    expected = log_probability(Rows(features, signs), whole, queries)
    monkeypatch.setattr(binary, "CPU_BLOCK", 3 * 400)
    parts = augment(Rows(features, signs), keys, 7, 3, stratify=stratify)
    np.testing.assert_allclose(parts, whole, rtol=1e-9)
    for ours, theirs in zip(log_probability(Rows(features, signs), whole, queries), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("stratify", [False, True])
def test_a_row_of_sign_zero_is_no_row_wherever_it_is(stratify: bool) -> None:
    features, signs, queries = stacked(*toy(12, 5))
    keys = key(0, torch.arange(12))
    wide, wide_signs, wide_keys = (
        torch.zeros(15, 2).double(),
        torch.zeros(15).double(),
        key(9, torch.arange(15)),
    )
    places = torch.tensor([0, 1, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14])
    wide[places], wide_signs[places], wide_keys[places] = features, signs, keys
    omega = augment(Rows(features, signs), keys, 3, 4, stratify=stratify)
    padded = augment(Rows(wide, wide_signs), wide_keys, 3, 4, stratify=stratify)
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


@pytest.mark.parametrize("stratify", [False, True])
def test_no_two_draws_share_a_key(stratify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    features, signs, _ = stacked(*toy(6, 1))
    seen: list[torch.Tensor] = []

    def recorded(keys: torch.Tensor) -> torch.Tensor:
        seen.append(keys.flatten())
        return uniform(keys)

    monkeypatch.setattr(binary, "uniform", recorded)
    augment(Rows(features, signs), key(0, torch.arange(6)), chains=5, steps=4, stratify=stratify)
    keys = torch.cat(seen)
    # Five starts from the prior, four steps of two normals each, five draws of ω of nine exponentials each.
    assert len(keys) == 6 * 5 * (1 + 4 * 2 + 5 * 9)
    assert len(keys.unique()) == len(keys)

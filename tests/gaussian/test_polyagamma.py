"""PG(1, c) draws against a library's draws and distribution function, and against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from polyagamma import polyagamma_cdf, random_polyagamma  # type: ignore[import-untyped]

from sfedhp.core.keys import key
from sfedhp.gaussian import polyagamma

TILTS = (0.0, 0.1, 1.0, 5.0, 20.0)
COUNT = 100_000


def draws(tilt: float, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return polyagamma.draw(torch.full((COUNT,), tilt, dtype=dtype), key(seed, torch.arange(COUNT)))


def moments(tilt: float) -> tuple[float, float]:
    """E = tanh(c/2)/2c and Var = (sinh c − c)/(4c³ cosh²(c/2)), with their limits at 0."""
    if tilt == 0:
        return 1 / 4, 1 / 24
    spread = (np.sinh(tilt) - tilt) / (4 * tilt**3 * np.cosh(tilt / 2) ** 2)
    return float(np.tanh(tilt / 2) / (2 * tilt)), float(spread)


@pytest.mark.parametrize("tilt", TILTS)
def test_moments_are_the_closed_forms_and_the_library_s(tilt: float) -> None:
    mean, variance = moments(tilt)
    ours = draws(tilt).numpy()
    theirs = random_polyagamma(1, tilt, size=COUNT, random_state=np.random.default_rng(5))
    # Four standard errors; the variance's follows from the fourth moment.
    mean_error = 4 * np.sqrt(variance / COUNT)
    variance_error = 4 * np.sqrt((((theirs - mean) ** 4).mean() - variance**2) / COUNT)
    assert abs(ours.mean() - mean) < mean_error
    assert abs(ours.var() - variance) < variance_error
    assert abs(ours.mean() - theirs.mean()) < np.sqrt(2) * mean_error
    assert abs(ours.var() - theirs.var()) < np.sqrt(2) * variance_error


@pytest.mark.parametrize("tilt", TILTS)
def test_distribution_is_the_library_s(tilt: float) -> None:
    ours = np.sort(draws(tilt, seed=1).numpy())[::20]
    ranks = (np.arange(COUNT)[::20] + 0.5) / COUNT
    distance = np.abs(polyagamma_cdf(ours, 1, tilt) - ranks).max()
    assert distance < 1.95 / np.sqrt(COUNT)  # Kolmogorov and Smirnov at 0.1 %


def test_exact_moments_hold_between_the_series_and_the_closed_forms() -> None:
    tilts = torch.tensor([0.0, 1e-6, 0.0199, 0.0201, 0.5, 3.0, 40.0], dtype=torch.float64)
    for sign in (1, -1):
        for tilt, mean, variance in zip(
            tilts.tolist(), polyagamma.mean(sign * tilts), polyagamma.variance(sign * tilts), strict=True
        ):
            # The textbook forms cancel for small c: their own error is what is allowed.
            allowed = 1e-12 + (1e-15 / tilt**3 if 0.01 < tilt < 0.1 else 0)
            expected = moments(tilt) if tilt != 1e-6 else moments(0.0)
            assert float(mean) == pytest.approx(expected[0], abs=1e-12)
            assert float(variance) == pytest.approx(expected[1], abs=allowed)


def test_draws_are_positive_and_finite_however_large_the_tilt() -> None:
    tilts = torch.logspace(-8, 5, 200, dtype=torch.float64).unsqueeze(-1).expand(-1, 500)
    omega = polyagamma.draw(tilts, key(torch.arange(200).unsqueeze(-1), torch.arange(500)))
    assert (omega > 0).all()
    assert omega.isfinite().all()
    assert omega.mean(-1)[-1] == pytest.approx(0.5e-5, rel=0.01)


def test_a_draw_depends_on_its_key_and_tilt_alone() -> None:
    keys, tilts = key(torch.arange(6).unsqueeze(-1), torch.arange(9)), torch.randn(6, 9)
    whole = polyagamma.draw(tilts, keys)
    assert whole.dtype == torch.float32
    assert torch.equal(whole[2, 3], polyagamma.draw(tilts[2, 3], keys[2, 3]))
    assert torch.equal(whole, polyagamma.draw(-tilts, keys))
    assert not torch.isclose(whole, polyagamma.draw(tilts, keys + 1)).any()

"""Computes ε of the Gaussian mechanism, sampled without replacement, with dp-accounting.

Neighbouring data sets differ in one row, or one client, that is replaced by another: the number of rows and
of clients is public. A sum of vectors no longer than C then moves by up to 2 C, so that noise of deviation
σ C is a noise multiplier of σ/2. dp-accounting composes Rényi divergences; for sampling it uses Theorem 27 of

Subsampled Rényi Differential Privacy and Analytical Moments Accountant.
Y.-X. Wang, B. Balle, S. Kasiviswanathan. AISTATS 2019. https://arxiv.org/abs/1808.00087
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sfedhp.core.errors import InputError

# Ten times faster than all of dp-accounting's, and enough to search among noises for ε of about 1 to 10.
_FEW_ORDERS: Final = (1.25, 1.5, *range(2, 13), 14, 16, 20, 24, 28, 32, 40, 48, 64, 96)
_CLOSE: Final = 1.01  # a noise that is found is at most about this factor too large
_MOST_NOISE: Final = 2.0**40
_TRIES: Final = 40


@dataclass(frozen=True)
class Release:
    """The noisy sums that one row, or one client, may be part of: their number and their sampling."""

    count: int  # samples, each drawn independently
    population: int  # n
    sample: int  # how many of the n are in a sample, without replacement; n or more: all
    steps: int = 1  # noisy sums of each sample

    @property
    def sampled(self) -> bool:
        """Whether a sample has fewer rows than the population."""
        return self.sample < self.population


def epsilon(release: Release, noise: float, delta: float) -> float:
    """ε of all sums of a release together.

    Args:
        release: what is published.
        noise: σ, the deviation of the noise in units of the clip norm.
        delta: δ.

    Raises:
        InputError: dp-accounting is not installed.
    """
    return _epsilon(release, noise, delta)


def noise_for(release: Release, target: float, delta: float) -> float:
    """The least σ with which a release stays within an ε, up to about a percent.

    Raises:
        InputError: dp-accounting is not installed.
    """

    def excess(at: float) -> float:
        """log ε − log target for log σ: nearly a straight line."""
        found = _epsilon(release, math.exp(at), delta, _FEW_ORDERS)
        return math.log(min(max(found, 1e-9), 1e300) / target)

    low, high = math.log(1e-3), 0.0
    above, below = 0.0, excess(high)
    while below > 0 and math.exp(high) < _MOST_NOISE:
        low, above, high = high, below, high + max(below, 1.0)
        below = excess(high)
    above = above or excess(low)
    for _ in range(_TRIES):
        if above <= 0 or below > 0 or below > -math.log(_CLOSE) or high - low < math.log(_CLOSE):
            break
        # On the line between both ends, a little to the side that is kept.
        middle = low + (high - low) * (above + 0.3 * math.log(_CLOSE)) / (above - below)
        value = excess(middle)
        low, above, high, below = (middle, value, high, below) if value > 0 else (low, above, middle, value)
    noise = math.exp(high)
    # dp-accounting has other orders; for very little or much noise they may give a slightly larger ε.
    while (spent := _epsilon(release, noise, delta)) > target and noise < _MOST_NOISE:
        noise *= max(_CLOSE, spent / target)
    return noise


def _epsilon(release: Release, noise: float, delta: float, orders: Sequence[float] | None = None) -> float:
    """ε of a release: the smaller bound of those for its samples and for all rows each time."""
    if not release.count or not release.steps:
        return 0.0
    if not noise:
        return math.inf
    samples = {release.sample, release.population} if release.sampled else {release.population}
    known = None if orders is None else tuple(orders)
    return min(
        _composed(release.count, release.population, sample, release.steps, noise, delta, known)
        for sample in samples
    )


def _composed(
    count: int,
    population: int,
    sample: int,
    steps: int,
    noise: float,
    delta: float,
    orders: tuple[float, ...] | None,
) -> float:
    """ε of a number of samples."""
    accounting = library()
    at, divergences = _divergences(population, sample, steps, noise, orders)
    return float(accounting.rdp.compute_epsilon(at, count * divergences, delta)[0])


@lru_cache(maxsize=1024)
def _divergences(
    population: int, sample: int, steps: int, noise: float, orders: tuple[float, ...] | None
) -> tuple[Any, Any]:
    """The orders, and at each the Rényi divergence of one sample."""
    accounting = library()
    relation = accounting.NeighboringRelation.REPLACE_ONE
    accountant = accounting.rdp.RdpAccountant(orders, relation)
    sums = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(noise / 2), steps)
    if sample < population:
        sums = accounting.SampledWithoutReplacementDpEvent(population, sample, sums)
    accountant.compose(sums)
    return accountant.orders, accountant.rdp


def library() -> Any:
    """The module `dp_accounting`, imported on first use.

    Raises:
        InputError: it is not installed.
    """
    try:
        import dp_accounting
    except ImportError:
        raise InputError(
            "ε is computed by dp-accounting, which is not installed: pip install 'sfedhp[privacy]'."
        ) from None
    return dp_accounting


def is_installed() -> bool:
    """Whether ε can be computed here."""
    try:
        library()
    except InputError:
        return False
    return True

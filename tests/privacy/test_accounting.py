"""ε against dp-accounting, whose events are composed here anew."""

import math
import sys

import pytest

from sfedhp.core.errors import InputError
from sfedhp.privacy.accounting import Release, epsilon, is_installed, noise_for

dp = pytest.importorskip("dp_accounting")


def accounted(*events, delta=1e-5):
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(delta)


def sampled(rows, batch, noise, steps=1):
    inner = dp.GaussianDpEvent(noise / 2)
    inner = inner if steps == 1 else dp.ComposedDpEvent([inner] * steps)
    return dp.SampledWithoutReplacementDpEvent(rows, batch, inner)


# release, σ, δ, the same by dp-accounting
CASES = {
    "one step": (Release(1, 600, 20), 2.0, 1e-5, lambda: accounted(sampled(600, 20, 2.0))),
    "FedAvg": (
        Release(400, 600, 20),
        3.0,
        1e-5,
        lambda: accounted(dp.SelfComposedDpEvent(sampled(600, 20, 3.0), 400)),
    ),
    "sFedHP, five steps on each batch": (
        Release(200, 1000, 20, 5),
        8.0,
        1e-6,
        lambda: accounted(*[dp.SelfComposedDpEvent(sampled(1000, 20, 8.0, 5), 20)] * 10, delta=1e-6),
    ),
    "full batches": (
        Release(30, 50, 50),
        12.0,
        1e-4,
        lambda: accounted(dp.SelfComposedDpEvent(dp.GaussianDpEvent(6.0), 30), delta=1e-4),
    ),
    "sampled clients": (
        Release(100, 20, 5),
        10.0,
        1e-3,
        lambda: accounted(dp.SelfComposedDpEvent(sampled(20, 5, 10.0), 100), delta=1e-3),
    ),
    "every client": (
        Release(60, 1, 1),
        40.0,
        1e-5,
        lambda: accounted(dp.SelfComposedDpEvent(dp.GaussianDpEvent(20.0), 60)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_epsilon_is_that_of_dp_accounting(case):
    release, noise, delta, expected = CASES[case]
    assert epsilon(release, noise, delta) == pytest.approx(expected(), rel=1e-9)
    assert 0.01 < epsilon(release, noise, delta) < 100, "a figure that could be wrong"


def test_a_sample_of_nearly_all_is_no_worse_than_all():
    """The bound for sampling is above that for no sampling there: the smaller one holds for both."""
    nearly, every = Release(100, 600, 599), Release(100, 600, 600)
    assert epsilon(nearly, 5.0, 1e-5) == pytest.approx(epsilon(every, 5.0, 1e-5))
    assert accounted(dp.SelfComposedDpEvent(sampled(600, 599, 5.0), 100)) > epsilon(every, 5.0, 1e-5)


def test_the_noise_for_an_epsilon_gives_it():
    for release in (Release(400, 600, 20), Release(30, 50, 50), Release(10, 600, 20, 5)):
        for target in (1.0, 3.0, 10.0):
            noise = noise_for(release, target, 1e-5)
            assert 0.96 * target <= epsilon(release, noise, 1e-5) <= target


def test_more_noise_fewer_steps_and_more_rows_reveal_less():
    base = epsilon(Release(100, 600, 20), 3.0, 1e-5)
    assert epsilon(Release(100, 600, 20), 4.0, 1e-5) < base
    assert epsilon(Release(50, 600, 20), 3.0, 1e-5) < base
    assert epsilon(Release(100, 1200, 20), 3.0, 1e-5) < base
    assert epsilon(Release(100, 600, 20, 2), 3.0, 1e-5) > base
    assert epsilon(Release(0, 600, 20), 3.0, 1e-5) == 0
    assert epsilon(Release(1, 600, 20), 0.0, 1e-5) == math.inf


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert not is_installed()
    with pytest.raises(InputError, match=r"pip install 'sfedhp\[privacy\]'"):
        epsilon(Release(1, 2, 2), 1.0, 1e-5)

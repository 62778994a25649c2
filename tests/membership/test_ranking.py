"""Areas under the ROC curve and their intervals."""

import numpy as np
import pytest

from sfedhp.membership.ranking import area_over, share_found


def drawn(seed, shift, members=80, others=60):
    generator = np.random.default_rng(seed)
    return generator.normal(shift, 1, members), generator.normal(0, 1, others)


def test_the_area_is_that_of_all_pairs():
    members, others = np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0])
    pairs = [(one > other) + 0.5 * (one == other) for one in members for other in others]
    assert area_over([(members, others)]).value == pytest.approx(np.mean(pairs))
    sklearn = pytest.importorskip("sklearn.metrics")
    members, others = drawn(0, 0.7)
    truth = np.r_[np.ones(len(members)), np.zeros(len(others))]
    expected = sklearn.roc_auc_score(truth, np.r_[members, others])
    assert area_over([(members, others)]).value == pytest.approx(expected)


@pytest.mark.parametrize("shift", [0.0, 0.8])
def test_the_interval_holds_the_true_area_as_often_as_it_says(shift):
    from statistics import NormalDist

    true = NormalDist().cdf(shift / 2**0.5)
    inside = 0
    for seed in range(300):
        found = area_over([drawn(seed, shift, 40, 30), drawn(1000 + seed, shift, 30, 40)])
        inside += found.low <= true <= found.high
    assert 270 <= inside <= 297


def test_groups_are_not_compared_with_each_other():
    """A client whose rows all have a smaller loss says nothing about membership."""
    one, two = drawn(0, 0.0), drawn(1, 0.0)
    apart = [one, (two[0] + 100, two[1] + 100)]
    assert area_over(apart).value == pytest.approx(area_over([one, two]).value)
    empty = (np.zeros(0), two[1])
    assert area_over([one, empty]) == area_over([one])
    with pytest.raises(ValueError, match="no group"):
        area_over([empty])


def test_the_share_found_at_few_mistakes():
    others = np.arange(200.0)
    assert share_found(np.array([198.5, 197.5, 0.0, 500.0]), others, 0.01) == 0.75
    assert share_found(others, others, 0.0) == 0.0

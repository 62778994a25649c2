import itertools
import math

import pytest
from scipy import stats  # type: ignore[import-untyped]

from sfedhp.paper import significance
from sfedhp.paper.significance import critical_value, difference, format_p, half_width, holm


def paired(left, right, margin=0.0):
    """Of seeds 0, 1, 2, …"""
    return difference(dict(enumerate(left)), dict(enumerate(right)), margin)


def test_three_seeds_as_in_a_table_of_students_t():
    # Differences 1, 2, 2: t = 5 with two degrees of freedom, where P(|T| > t) = 1 − t/√(2 + t²).
    found = paired([1, 2, 3], [0, 0, 1])
    assert found.p == pytest.approx(1 - 5 / math.sqrt(27), abs=1e-9)
    assert found.mean == pytest.approx(5 / 3)
    # In the tables 4.303; the standard error is a third.
    assert found.half == pytest.approx(4.303 / 3, abs=1e-3)


@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_p_values_and_intervals_are_those_of_a_library(margin):
    left, right = [3.1, 4.2, 2.2, 5.0, 4.4, 3.9, 4.8], [1.0, 2.5, 1.1, 1.9, 2.0, 2.2, 1.4]
    gaps = [mine - theirs for mine, theirs in zip(left, right, strict=True)]
    expected = stats.ttest_1samp(gaps, margin)
    found = paired(left, right, margin)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6)
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30])
def test_tails_and_critical_values_are_those_of_a_library(freedom):
    assert critical_value(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    for size in (0.0, 0.5, 3.0, 15.0):
        expected = 2 * stats.t.sf(size, freedom)
        assert significance.tail_probability(size, freedom) == pytest.approx(expected, rel=1e-4)


def test_the_order_does_not_matter_and_one_seed_says_nothing():
    assert paired([1, 2, 4], [2, 2, 2]).p == paired([2, 2, 2], [1, 2, 4]).p
    assert paired([1], [2]).p is None
    assert paired([1], [2]).half is None
    assert half_width([1.0]) is None
    assert paired([1, 2], [1, 2]).p == 1
    assert paired([1, 2], [0, 1]).p == 0
    assert paired([3, 3], [0, 0], margin=3).p == 1


def test_pairs_are_of_one_seed():
    found = difference({0: 9, 1: 1, 2: 3}, {2: 0, 1: 0, 5: 7})
    assert found == paired([1, 3], [0, 0])
    assert found is not None
    assert found.seeds == 2
    assert difference({0: 1}, {1: 2}) is None


def test_holms_correction_of_a_textbook():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    # Two of four tests are made: what is significant stays so, whatever the others say.
    assert holm([0.01, 0.02], planned=4) == pytest.approx([0.04, 0.06])
    assert holm([0.01, 0.02], planned=4) == pytest.approx(holm([0.01, 0.02, 1.0, 1.0])[:2])


def test_holms_correction_controls_what_is_rejected_by_chance():
    # Step down: the smallest against level/n, the next against level/(n − 1), until one is not below.
    for values in itertools.product((0.004, 0.012, 0.02, 0.3), repeat=4):
        ranked, rejected = sorted(range(4), key=lambda place: values[place]), set()
        for rank, place in enumerate(ranked):
            if values[place] * (4 - rank) >= 0.05:
                break
            rejected.add(place)
        assert {place for place, p in enumerate(holm(values)) if p < 0.05} == rejected


def test_a_p_value_in_words_is_never_rounded_across_the_level():
    words = {0.2: "p = 0.200", 0.0498: "p = 0.0498", 0.05: "p = 0.050", 0.0004: "p < 0.001"}
    assert {p: format_p(p) for p in words} == words

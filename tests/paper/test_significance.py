import math

import pytest

from sfedhp.paper import significance
from sfedhp.paper.significance import format_p


def paired(left, right):
    """Of seeds 0, 1, 2, …"""
    return significance.paired_t_test(dict(enumerate(left)), dict(enumerate(right)))


def test_three_seeds_as_in_a_table_of_students_t():
    # Differences 1, 2, 2: t = 5 with two degrees of freedom, where P(|T| > t) = 1 − t/√(2 + t²).
    assert paired([1, 2, 3], [0, 0, 1]) == pytest.approx(1 - 5 / math.sqrt(27), abs=1e-9)


def test_two_seeds_have_cauchys_tails():
    # Differences 1 and 3: t = 2 with one degree of freedom.
    assert paired([1, 3], [0, 0]) == pytest.approx(1 - 2 / math.pi * math.atan(2), abs=1e-9)


def test_many_seeds_come_near_the_normal_distribution():
    differences = [1.0, -1.0] * 500 + [20.0]
    mean, size = sum(differences) / 1001, math.sqrt(1001)
    spread = math.sqrt(sum((each - mean) ** 2 for each in differences) / 1000)
    normal = math.erfc(mean / spread * size / math.sqrt(2))
    assert paired(differences, [0.0] * 1001) == pytest.approx(normal, rel=0.01)


def test_the_order_does_not_matter_and_one_seed_says_nothing():
    assert paired([1, 2, 4], [2, 2, 2]) == paired([2, 2, 2], [1, 2, 4])
    assert paired([1], [2]) is None
    assert paired([1, 2], [1, 2]) == 1
    assert paired([1, 2], [0, 1]) == 0


def test_pairs_are_of_one_seed():
    assert significance.paired_t_test({0: 9, 1: 1, 2: 3}, {2: 0, 1: 0, 5: 7}) == paired([1, 3], [0, 0])
    assert significance.paired_t_test({0: 1, 1: 2}, {1: 1, 2: 2}) is None


def test_a_chance_in_words_is_never_rounded_across_the_level():
    words = {0.2: "p = 0.200", 0.0498: "p = 0.0498", 0.05: "p = 0.050", 0.0004: "p < 0.001", None: "one seed"}
    assert {chance: format_p(chance) for chance in words} == words

"""Metrics as tables name them: which of two values is better, and by how much."""

import pytest

from sfedhp.nn.problems import METRICS


@pytest.mark.parametrize(
    ("name", "before", "after", "gain"),
    [
        ("accuracy", 80.0, 82.5, 2.5),  # points
        ("rmse", 4.0, 3.0, 25.0),  # % of the error
        ("rmse", 4.0, 5.0, -25.0),
        ("rmse", 0.0, 1.0, 0.0),  # no error to compare with
        ("r2", 0.5, 0.6, 20.0),
        ("r2", -0.5, -0.4, 20.0),
    ],
)
def test_a_gain_is_in_points_or_in_percent_of_the_value_before(name, before, after, gain):
    metric = METRICS[name]
    assert metric.gain(before, after) == pytest.approx(gain)
    if gain:
        assert metric.better(after, before) is (gain > 0)


@pytest.mark.parametrize(("name", "word"), [("accuracy", "rising"), ("rmse", "falling"), ("r2", "rising")])
def test_what_becomes_better_rises_or_falls(name, word):
    assert METRICS[name].improving == word

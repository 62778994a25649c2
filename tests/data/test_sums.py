import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfedhp.data.sums import Sums

RANDOM = np.random.default_rng(3)


def parts_of(rows: np.ndarray, cuts: list[int]) -> list[Sums]:
    return [Sums.of(part, to_add=True) for part in np.split(rows, cuts)]


@pytest.mark.parametrize("offset", [0.0, 1e6, 1.7e12])
def test_sums_of_parts_give_the_mean_and_deviation_of_all_rows(offset: float) -> None:
    rows = offset + RANDOM.normal(size=(300, 4)) * [1, 10, 0.1, 3]
    mean, variance = Sums.add(parts_of(rows, [1, 40, 41, 250])).moments()
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-14)
    np.testing.assert_allclose(np.sqrt(variance), (rows - offset).std(0), rtol=1e-12)


def test_it_does_not_matter_who_adds_first() -> None:
    one, two, three = parts_of(1e5 + RANDOM.normal(size=(90, 3)), [20, 50])
    grouped, flat = Sums.add([Sums.add([one, two]), three]), Sums.add([one, two, three])
    for left, right in zip(grouped.moments(), flat.moments(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


def test_sums_of_pixels_are_exact() -> None:
    images = RANDOM.integers(0, 256, (2500, 2, 5, 4)).astype(np.uint8)
    whole, added = Sums.of(images), Sums.add(parts_of(images, [1100, 1101]))
    for name in ("count", "total", "squares"):
        np.testing.assert_array_equal(getattr(added, name), getattr(whole, name))
        assert getattr(added, name).dtype == np.int64
    np.testing.assert_array_equal(whole.total, images.astype(int).sum(0))


def test_a_missing_value_does_not_count_and_a_part_may_know_none() -> None:
    rows = 1e9 + RANDOM.normal(size=(40, 2))
    rows[:10, 0] = np.nan
    rows[RANDOM.random((40, 2)) < 0.2] = np.nan
    added = Sums.add(parts_of(rows, [10, 20]))
    mean, variance = added.moments()
    np.testing.assert_allclose(mean, np.nanmean(rows, 0), rtol=1e-15)
    np.testing.assert_allclose(variance, np.nanvar(rows, 0), rtol=1e-6)
    np.testing.assert_array_equal(added.count, (~np.isnan(rows)).sum(0))


def test_equal_values_have_no_deviation_however_they_are_added() -> None:
    rows = np.full((1000, 3), 0.1)
    mean, variance = Sums.add(parts_of(rows, [3, 500, 998])).moments()
    assert mean.tolist() == [0.1] * 3
    assert not variance.any()
    assert not Sums.of(np.full((7, 2, 3, 3), 0.3)).moments((1, 2))[1].any()


def test_axes_can_count_as_one_feature() -> None:
    rows = RANDOM.normal(50, 3, (20, 2, 3, 4)) + np.arange(3)[:, None]
    mean, variance = Sums.add(parts_of(rows, [7])).moments((1, 2))
    np.testing.assert_allclose(mean, rows.mean((0, 2, 3))[:, None, None])
    np.testing.assert_allclose(variance, rows.var((0, 2, 3))[:, None, None])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=20), st.booleans())
def test_json_keeps_every_bit(values: list[float], pixels: bool) -> None:
    rows = np.abs(np.array(values)[:, None])
    sums = Sums.of((rows % 256).astype(np.uint8) if pixels else rows)
    again = json.loads(json.dumps(sums.to_dict()))
    for name in ("count", "center", "total", "squares"):
        np.testing.assert_array_equal(np.array(again[name]), getattr(sums, name))

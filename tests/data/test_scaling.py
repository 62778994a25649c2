import json
from typing import Any

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.data.loading import from_arrays
from sfedhp.data.options import DataOptions
from sfedhp.data.scaling import Scaling, scaling_of
from sfedhp.data.sums import Sums

RANDOM = np.random.default_rng(5)
FLOAT64 = np.dtype("float64")
EVERY = np.arange(60)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((4,), (0,)), ((6, 4), (0, 1)), ((3, 5, 4), (0, 2, 3))],
    ids=["columns", "time", "images"],
)
def test_standard_floats_are_scaled_by_feature(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    rows = RANDOM.normal(7, 3, (60, *shape)) * np.arange(1, 5)
    training = EVERY[:40]
    scaled = scaling_of("standard", rows, training, None).apply(rows, FLOAT64)
    mean, deviation = (f(rows[:40], axis=axes, keepdims=True) for f in (np.mean, np.std))
    np.testing.assert_allclose(scaled, (rows - mean) / deviation, atol=1e-12)


def test_standard_floats_of_arrays_and_what_auto_leaves_alone() -> None:
    rows, labels = (RANDOM.normal(300, 40, (60, 4))).astype(np.float32), EVERY % 3
    rows[:, 2] = 5
    place: dict[str, Any] = {"edges": 1, "clients_per_edge": 2, "seed": 0}
    plain, resolved = from_arrays(rows, labels, **place)
    assert (plain.scale, resolved.scale) == ("none", "none")
    np.testing.assert_array_equal(plain.scaled(EVERY, "float32"), rows)
    federation, resolved = from_arrays(rows, labels, options=DataOptions(scale="standard"), **place)
    assert (federation.scale, resolved.scale, federation.notes) == ("standard", "standard", ())
    training = federation.scaled(np.concatenate(federation.train), "float64")
    np.testing.assert_allclose(training.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(training.std(0), [1, 1, 0, 1], atol=1e-12)


@pytest.mark.parametrize("kind", ["unit", "standard", "per_pixel", "none"])
def test_json_keeps_the_scaling_of_pixels(kind) -> None:
    images = RANDOM.integers(0, 256, (60, 3, 4, 4)).astype(np.uint8)
    scaling = scaling_of(kind, images, EVERY, None)
    again = Scaling.from_dict(json.loads(json.dumps(scaling.to_dict(), allow_nan=False)))
    np.testing.assert_array_equal(
        again.apply(images, np.dtype("float32")), scaling.apply(images, np.dtype("float32"))
    )
    assert (again.kind, again.pixels) == (kind, True)


def test_json_keeps_the_scaling_of_columns_with_constants_and_missing_values() -> None:
    rows = RANDOM.normal(size=(60, 3))
    rows[:, 1] = 4
    rows[::7, 0] = np.nan
    scaling = scaling_of("standard", rows, EVERY, np.array([True, True, False]))
    text = json.dumps(scaling.to_dict(), allow_nan=False)
    scaled = Scaling.from_dict(json.loads(text)).apply(rows, FLOAT64)
    np.testing.assert_array_equal(scaled, scaling.apply(rows, FLOAT64))
    assert not scaled[:, 1].any()
    assert abs(scaled[::7, 0]).max() < 1e-15
    np.testing.assert_array_equal(scaled[:, 2], rows[:, 2])


def test_sums_of_clients_give_the_scaling_of_all_rows() -> None:
    rows = 1e6 + RANDOM.normal(size=(60, 5))
    whole = scaling_of("standard", rows, EVERY, None)
    added = Scaling.of_floats(
        "standard", Sums.add([Sums.of(part, to_add=True) for part in np.split(rows, [9, 30])])
    )
    np.testing.assert_allclose(added.apply(rows, FLOAT64), whole.apply(rows, FLOAT64), atol=1e-9)


@pytest.mark.parametrize(
    ("trained", "offered", "words"),
    [
        (np.uint8, np.float32, "`inputs` are float32, but the model was trained on uint8"),
        (np.float64, np.uint8, "`inputs` are uint8, but the model was trained on floats"),
    ],
)
def test_pixels_and_floats_are_not_mixed_up(trained: type, offered: type, words: str) -> None:
    scaling = scaling_of("none", np.ones((2, 3), trained), np.arange(2), None)
    scaling.check("own.npz", np.ones((2, 3), trained))
    with pytest.raises(InputError, match=words):
        scaling.check("own.npz", np.ones((2, 3), offered))

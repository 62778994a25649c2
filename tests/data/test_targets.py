"""Which problem a user's array poses, and how its rows are grouped and scaled."""

from typing import Any

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.data import from_arrays
from sfedhp.data.targets import strata_of, target_of

DRAW = np.random.default_rng(0)
FLOATS = DRAW.normal(size=40)
BITS = DRAW.integers(0, 2, (40, 3))


def federation(labels: Any, **options: Any) -> Any:
    inputs = DRAW.normal(size=(40, 2))
    return from_arrays(inputs, labels, edges=1, clients_per_edge=4, seed=0, **options)[0]


@pytest.mark.parametrize(
    ("values", "named", "found"),
    [
        (np.arange(40) % 3, "auto", "classification"),
        (np.arange(40) % 3 * 1.0, "classification", "classification"),
        (np.arange(40) % 3, "regression", "regression"),
        (FLOATS, "auto", "regression"),
        (np.arange(60) * 1.0, "auto", "regression"),  # more values than classes would have
        (np.stack([FLOATS, FLOATS], 1), "auto", "regression"),
        (BITS, "auto", "multilabel"),
        (BITS.astype(bool), "auto", "multilabel"),
        (BITS * 1.0, "auto", "multilabel"),
        (BITS, "regression", "regression"),
        (FLOATS, "reconstruction", "reconstruction"),
    ],
)
def test_the_problem_follows_from_the_target_or_is_named(values: Any, named: Any, found: str) -> None:
    target = target_of("my `labels`", values, named)
    assert target.problem == found
    assert (target.note is not None) == (named == "auto" and found != "classification")


@pytest.mark.parametrize(
    ("values", "problem", "words"),
    [
        (np.array(["a", "b"]), "regression", "holds <U1 and not numbers, which problem = regression needs"),
        (np.array([1.5, np.nan]), "auto", "holds a NaN, infinite or huge (above 3e38) value in row 1"),
        (np.array([[1.5, np.inf], [1, 1]]), "regression", "value in row 0"),
        (np.array([0.0, 1.0]), "auto", "may be classes or quantities: set problem=regression"),
        (np.array([[0, 1], [2, 1]]), "auto", "may be classes or quantities"),
        (np.array([[0, 1], [2, 1]]), "multilabel", "must be 0 or 1 for each label"),
        (np.array([0, 1]), "multilabel", "must be 0 or 1 for each label"),
        (np.array([0.5, 1]), "classification", "must be integers from 0"),
        (np.array(["a", "b"]), "auto", "number the classes, for example with np.unique("),
    ],
)
def test_what_is_refused(values: Any, problem: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        target_of("my `labels`", values, problem)
    assert words in str(caught.value)
    assert str(caught.value).startswith("my `labels`")


def test_booleans_are_two_classes() -> None:
    target = target_of("my `labels`", np.array([True, False]), "auto")
    assert (target.problem, target.labels.tolist()) == ("classification", [1, 0])


def test_rows_are_grouped_by_tenths_of_a_number_and_by_the_first_label() -> None:
    group, groups = strata_of("regression", np.arange(40.0)[:, None])
    assert groups == 10
    assert np.bincount(group).tolist() == [4] * 10
    assert strata_of("multilabel", np.array([[0, 1], [1, 1], [0, 0]])).group.tolist() == [1, 0, 2]


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_every_partition_divides_numbers(partition: Any) -> None:
    from sfedhp.data import DataOptions

    options = DataOptions(partition=partition, validation_per_label=1, concentration=5.0)
    found = federation(np.arange(40.0) + 0.5, options=options)
    held = np.concatenate([*found.train, *found.test, *found.validation])
    assert sorted(held.tolist()) == list(range(40))


def test_numbers_are_standardized_by_the_training_rows_alone() -> None:
    found = federation(np.stack([FLOATS * 5 + 100, FLOATS**2], 1))
    training = found.labels[np.concatenate(found.train)]
    scaled = found.targets(found.test[0], "float64")
    np.testing.assert_allclose(
        scaled, (found.labels[found.test[0]] - training.mean(0)) / training.std(0), rtol=1e-12
    )
    assert found.target_scaling is not None
    np.testing.assert_allclose(found.target_scaling.spread, training.std(0))


def test_labels_that_are_many_get_a_note() -> None:
    found = from_arrays(DRAW.normal(size=(120, 2)), np.arange(120) % 60, edges=1, clients_per_edge=2, seed=0)[
        0
    ]
    assert any(
        "60 different values, taken as classes: set problem=regression" in each for each in found.notes
    )


def test_labels_are_needed_except_to_reconstruct() -> None:
    with pytest.raises(InputError, match="set problem=reconstruction"):
        federation(None)
    assert federation(None, problem="reconstruction").outputs == 2

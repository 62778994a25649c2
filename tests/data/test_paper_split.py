from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, federate, from_arrays
from sfedhp.data.paper_split import label_table


def pooled(per_class: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), per_class))
    return np.zeros((len(labels), 1), np.uint8), labels


def split(
    per_class: int, *, classes: int = 10, clients: int = 20, seed: int = 0, test: Any = None, **options: Any
):
    inputs, labels = pooled(per_class, classes)
    chosen = DataOptions(**({"partition": "paper"} | options))
    return from_arrays(
        inputs, labels, test=test, options=chosen, edges=1, clients_per_edge=clients, seed=seed
    )


def counts(federation, part: str) -> np.ndarray:
    return np.array([getattr(holding, part) for holding in sorted(federation.describe())])


def test_label_rules():
    assert label_table(4, 2, 3, "sliding").tolist() == [[0, 1], [1, 2], [2, 0], [0, 1]]
    assert label_table(4, 2, 3, "blocks").tolist() == [[0, 1], [2, 0], [1, 2], [0, 1]]


@pytest.mark.parametrize("rule", ["sliding", "blocks"])
def test_every_client_holds_exactly_its_labels_in_exact_numbers(rule):
    federation, resolved = federate(DataOptions(rule=rule), edges=4, clients_per_edge=5, seed=3)
    holds = np.zeros((20, 10), int)
    for client in range(20):
        first = client if rule == "sliding" else 2 * client
        holds[client, [first % 10, (first + 1) % 10]] = 1
    for part, number in (("train", 50), ("test", 50), ("validation", 10)):
        np.testing.assert_array_equal(counts(federation, part), holds * number)
    assert resolved == DataOptions(
        rule=rule,
        scale="unit",
        partition="paper",
        labels_per_client=2,
        train_per_label=50,
        test_per_label=50,
        validation_per_label=10,
    )


sizes = st.tuples(
    st.integers(1, 6),  # clients
    st.integers(2, 5),  # classes
    st.integers(1, 5),  # train
    st.integers(1, 5),  # test
    st.integers(0, 5),  # validation
    st.integers(4, 60),  # images per class
    st.integers(0, 2**32),  # seed
)


@settings(max_examples=200, deadline=None)
@given(sizes=sizes, data=st.data())
def test_paper_never_gives_an_image_twice(sizes, data):
    clients, classes, train, test, validation, per_class, seed = sizes
    options = {
        "labels_per_client": data.draw(st.integers(1, classes)),
        "rule": data.draw(st.sampled_from(["sliding", "blocks"])),
        "train_per_label": train,
        "test_per_label": test,
        "validation_per_label": validation,
    }
    table = label_table(clients, options["labels_per_client"], classes, options["rule"])
    holders = np.bincount(table.ravel(), minlength=classes)
    unused = per_class - holders * (train + test)
    fresh = np.minimum(validation, unused // np.maximum(holders, 1))
    fits = (unused >= 0).all() and ((validation - fresh)[holders > 0] < train).all()
    if not fits:
        with pytest.raises(InputError, match=r"label \d"):
            split(per_class, classes=classes, clients=clients, seed=seed, **options)
        return
    federation, _ = split(per_class, classes=classes, clients=clients, seed=seed, **options)
    rows = np.concatenate([*federation.train, *federation.test, *federation.validation])
    assert len(np.unique(rows)) == len(rows)
    holds = np.zeros((clients, classes), int)
    np.put_along_axis(holds, table, 1, axis=1)
    np.testing.assert_array_equal(counts(federation, "test"), holds * test)
    np.testing.assert_array_equal(counts(federation, "validation"), holds * validation)
    # Validation comes from unused images; what they lack comes from training and is said.
    np.testing.assert_array_equal(counts(federation, "train"), holds * (train - (validation - fresh)))
    assert bool(federation.notes) == ((validation - fresh)[holders > 0] > 0).any()


@settings(max_examples=200, deadline=None)
@given(sizes=sizes, data=st.data())
def test_as_written_no_test_or_validation_image_trains_anybody(sizes, data):
    clients, classes, train, test, validation, per_class, seed = sizes
    labels = data.draw(st.integers(1, classes))
    options = {
        "partition": "paper-as-written",
        "labels_per_client": labels,
        "train_per_label": train,
        "test_per_label": test,
        "validation_per_label": validation,
    }
    if train + test + validation > per_class:
        with pytest.raises(InputError, match=f"has {per_class} images of label 0"):
            split(per_class, classes=classes, clients=clients, seed=seed, **options)
        return
    federation, _ = split(per_class, classes=classes, clients=clients, seed=seed, **options)
    table = label_table(clients, labels, classes, "sliding")
    holds = np.zeros((clients, classes), int)
    np.put_along_axis(holds, table, 1, axis=1)
    for part, number in (("train", train), ("test", test), ("validation", validation)):
        np.testing.assert_array_equal(counts(federation, part), holds * number)
        assert all(len(np.unique(rows)) == len(rows) for rows in getattr(federation, part))
    trained, tested, validated = (
        set(np.concatenate(rows).tolist())
        for rows in (federation.train, federation.test, federation.validation)
    )
    assert not trained & tested
    assert not trained & validated
    assert not tested & validated
    # One test pool per class.
    assert len(tested) == test * (holds.sum(0) > 0).sum()
    # So long as training leaves images over, everybody validates on others; at worst all on the same.
    holders = int(holds[:, 0].sum())
    if holders:
        unused = per_class - test - holders * train
        own = {row for row in validated if federation.labels[row] == 0}
        assert len(own) == min(max(unused, validation), holders * validation)
    # Training images are shared only where needed, and then as evenly as can be.
    uses = Counter(np.concatenate(federation.train).tolist())
    places = holds.sum(0).max() * train
    if places + test + holds.sum(0).max() * validation <= per_class:
        assert set(uses.values()) == {1}
        assert "no training image is shared (overlap factor 1.00)" in federation.notes[0]
    of_label_0 = [
        uses[row] for row in range(len(federation.labels)) if federation.labels[row] == 0 and row in uses
    ]
    assert max(of_label_0) - min(of_label_0) <= 1


def test_as_written_prints_the_factors_of_its_sharing():
    federation, resolved = federate(
        DataOptions(partition="paper-as-written"), edges=4, clients_per_edge=5, seed=0
    )
    assert (resolved.labels_per_client, resolved.train_per_label) == (5, 50)
    # 440 images: 50 tested, 10 validated, so 500 places for 380 images.
    assert f"overlap factor {500 / 380:.2f}" in federation.notes[0]
    assert (
        "50 test images of a class are shared by its clients (overlap factor up to 10.00)"
        in federation.notes[1]
    )


def test_too_many_images_say_how_many_there_are():
    with pytest.raises(InputError, match=r"has 440 images of label 0 and 4 clients .*at most 110 together"):
        federate(DataOptions(train_per_label=100), edges=4, clients_per_edge=5, seed=0)
    with pytest.raises(InputError, match=r"fmnist-mini has 440 images of label 0, so 400 training"):
        federate(
            DataOptions(partition="paper-as-written", train_per_label=400),
            edges=4,
            clients_per_edge=5,
            seed=0,
        )
    with pytest.raises(
        InputError, match=r"data.labels_per_client = 11 is above the 10 classes of fmnist-mini"
    ):
        federate(DataOptions(labels_per_client=11), edges=4, clients_per_edge=5, seed=0)
    with pytest.raises(InputError, match=r"validation_per_label = 70 leaves no training image of label 0"):
        federate(DataOptions(validation_per_label=70), edges=4, clients_per_edge=5, seed=0)


def test_validation_from_training_images_is_said():
    federation, _ = federate(DataOptions(validation_per_label=25), edges=4, clients_per_edge=5, seed=0)
    assert federation.notes == (
        "paper: too few images are unused, so validation takes up to 15 of a client's "
        "50 training images per label.",
    )


@pytest.mark.parametrize(("partition", "tests"), [("paper", 8), ("paper-as-written", 16)])
def test_a_test_column_is_never_overruled(partition, tests):
    """Two clients hold each label: they divide its test images, or share them as written."""
    _, labels = pooled(40, 4)
    test = np.zeros(160, bool)
    test[np.concatenate([np.flatnonzero(labels == label)[:16] for label in range(4)])] = True
    federation, resolved = split(
        40, classes=4, clients=4, test=test, partition=partition, labels_per_client=2, validation_per_label=2
    )
    assert (resolved.train_per_label, resolved.test_per_label) == (10, tests)
    assert test[np.concatenate(federation.test)].all()
    assert not test[np.concatenate([*federation.train, *federation.validation])].any()
    with pytest.raises(InputError, match=r"40 images of label 0 \(16 of them for testing\)"):
        split(40, classes=4, clients=4, test=test, partition=partition, test_per_label=20)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (15, 5, 0)),
        ({"test_share": 0.5}, (10, 10, 0)),
        ({"validation_per_label": 4}, (12, 4, 4)),
        ({"train_per_label": 9}, (9, 3, 0)),
        ({"train_per_label": 19}, (19, 1, 0)),
        ({"test_per_label": 2}, (6, 2, 0)),
        ({"test_per_label": 6}, (14, 6, 0)),
        ({"train_per_label": 2, "test_per_label": 3}, (2, 3, 0)),
    ],
)
def test_a_users_data_is_cut_by_what_fits(options, expected):
    _, resolved = split(40, classes=4, clients=4, **options)
    assert (resolved.train_per_label, resolved.test_per_label, resolved.validation_per_label) == expected
    assert resolved.labels_per_client == 2


def test_labels_per_client_never_exceed_the_classes_by_default():
    assert split(40, classes=3, clients=4, partition="paper-as-written")[1].labels_per_client == 3


def test_classes_no_one_holds_stay_unused():
    federation, _ = federate(DataOptions(), edges=1, clients_per_edge=1, seed=0)
    assert federation.describe()[0].train == (50, 50, 0, 0, 0, 0, 0, 0, 0, 0)


def test_as_written_the_test_images_of_a_class_are_not_divided():
    """Ten clients share a class of 200 images: a quarter of all tests each of them, not two images."""
    federation, resolved = split(200, classes=10, clients=20, partition="paper-as-written")
    assert (resolved.train_per_label, resolved.test_per_label) == (15, 50)
    assert {len(rows) for rows in federation.test} == {5 * 50}
    assert {len(rows) for rows in federation.train} == {5 * 15}
    fewer = split(200, classes=10, clients=20, partition="paper-as-written", test_per_label=20)[1]
    assert (fewer.train_per_label, fewer.test_per_label) == (18, 20)

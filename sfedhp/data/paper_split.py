"""The paper's split: every client holds a few labels and a fixed number of images of each.

There are two readings. `paper` is disjoint: an image belongs to at most one client. `paper-as-written` gives
each client five labels, as the text says. A class then has too few images for all its clients: they share one
set of test images, and training images where needed. In both, no test image is trained on.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Counts, Pool, Rows
from sfedhp.data.split import Split


class _Shares(NamedTuple):
    """The images of one label, (clients, images) each, and how far they are shared."""

    train: Rows
    test: Rows
    validation: Rows
    factor: float = 1.0  # training images that clients hold, over distinct training images
    held_out: int = 0  # training images of a client that became validation images


def paper(
    pool: Pool, options: DataOptions, clients: int, draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """The disjoint reading: every image belongs to at most one client."""
    table, options = _labels(pool, options, clients, default=2)
    options = _counts(pool, options, table)
    split, shares = _divide(pool, options, table, draw, shared=False)
    notes = []
    if held_out := max(share.held_out for share in shares):
        notes.append(
            f"paper: too few images are unused, so validation takes up to {held_out} of a client's "
            f"{options.train_per_label} training images per label."
        )
    return split._replace(notes=tuple(notes)), options


def paper_as_written(
    pool: Pool, options: DataOptions, clients: int, draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """The reading as written: clients share the test images of a class, and training images if needed."""
    table, options = _labels(pool, options, clients, default=5)
    options = _counts(pool, options, table, shared=True)
    split, shares = _divide(pool, options, table, draw, shared=True)
    factor = max(share.factor for share in shares)
    sharing = "no training image is shared" if factor <= 1 else "training images are shared where needed"
    holders = np.bincount(table.ravel(), minlength=pool.strata.groups).max()
    notes = (
        f"paper-as-written: {sharing} (overlap factor {max(factor, 1):.2f}).",
        f"paper-as-written: the {options.test_per_label} test images of a class are shared by its clients "
        f"(overlap factor up to {holders:.2f}); none of them is trained on.",
    )
    return split._replace(notes=notes), options


def label_table(clients: int, labels: int, classes: int, rule: str) -> NDArray[np.int64]:
    """The labels each client holds, (clients, labels): (u + j) or (u·L + j) modulo the classes."""
    first = np.arange(clients) * (labels if rule == "blocks" else 1)
    table: NDArray[np.int64] = (first[:, None] + np.arange(labels)) % classes
    return table


def _labels(
    pool: Pool, options: DataOptions, clients: int, default: int
) -> tuple[NDArray[np.int64], DataOptions]:
    labels = options.labels_per_client or min(default, pool.strata.groups)
    if labels > pool.strata.groups:
        raise InputError(
            f"data.labels_per_client = {labels} is above the {pool.strata.groups} classes of {pool.name}."
        )
    return (
        label_table(clients, labels, pool.strata.groups, options.rule),
        dataclasses.replace(options, labels_per_client=labels),
    )


def _counts(
    pool: Pool, options: DataOptions, table: NDArray[np.int64], *, shared: bool = False
) -> DataOptions:
    """Fill in missing counts: the source's own, else the largest that fit, divided by `test_share`."""
    validation = options.validation_per_label
    if validation is None:
        validation = pool.counts.validation if pool.counts else 0
    train, test = options.train_per_label, options.test_per_label
    if train is None or test is None:
        usual = pool.counts or (_fitting_shared if shared else _fitting)(pool, table, options, validation)
        train = usual.train if train is None else train
        test = usual.test if test is None else test
    return dataclasses.replace(
        options, train_per_label=train, test_per_label=test, validation_per_label=validation
    )


def _fitting(pool: Pool, table: NDArray[np.int64], options: DataOptions, validation: int) -> Counts:
    """The largest disjoint counts that every class allows; what was given takes its part first."""
    held, holders = np.unique(table, return_counts=True)

    def least(rows: NDArray[np.bool_]) -> int:
        return int(
            (np.bincount(pool.strata.group[rows], minlength=pool.strata.groups)[held] // holders).min()
        )

    if pool.test is not None:
        return Counts(max(least(~pool.test) - validation, 1), max(least(pool.test), 1), validation)
    room = least(np.ones(len(pool.inputs), np.bool_)) - validation
    share = options.test_share
    test = round(room * share)
    if options.train_per_label is not None:
        test = min(room - options.train_per_label, round(options.train_per_label * share / (1 - share)))
    train = room - test
    if options.test_per_label is not None:
        train = min(room - options.test_per_label, round(options.test_per_label * (1 - share) / share))
    return Counts(max(train, 1), max(test, 1), validation)


def _fitting_shared(pool: Pool, table: NDArray[np.int64], options: DataOptions, validation: int) -> Counts:
    """The same where clients share the test images of a class: these are not divided among them."""
    held, holders = np.unique(table, return_counts=True)

    def rows(which: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(pool.strata.group[which], minlength=pool.strata.groups)[held]

    if pool.test is not None:
        test, left = int(rows(pool.test).min()), rows(~pool.test)
    else:
        there = rows(np.ones(len(pool.inputs), np.bool_))
        test = round(int(there.min()) * options.test_share)
        left = there - (test if options.test_per_label is None else options.test_per_label)
    train = int((left // holders).min()) - validation
    return Counts(max(train, 1), max(test, 1), validation)


def _divide(
    pool: Pool, options: DataOptions, table: NDArray[np.int64], draw: np.random.Generator, *, shared: bool
) -> tuple[Split, list[_Shares]]:
    clients = len(table)
    held: list[list[list[Rows]]] = [[[] for _ in range(clients)] for _ in range(3)]
    all_shares = []
    for label in range(pool.strata.groups):
        holders = np.flatnonzero((table == label).any(1))
        rows = draw.permutation(np.flatnonzero(pool.strata.group == label))
        if not len(holders):
            continue
        share = (_shared if shared else _disjoint)(pool, options, label, len(holders), rows)
        all_shares.append(share)
        for part, lists in zip((share.train, share.test, share.validation), held, strict=True):
            for place, client in enumerate(holders):
                lists[client].append(part[place])
    train, test, validation = (tuple(np.sort(np.concatenate(rows)) for rows in lists) for lists in held)
    return Split(train, test, validation), all_shares


def _disjoint(pool: Pool, options: DataOptions, label: int, holders: int, rows: Rows) -> _Shares:
    train, test, validation = _resolved(options)
    for_test, for_train = _candidates(pool, rows, holders * test)
    if len(for_test) < holders * test or len(for_train) < holders * train:
        raise InputError(
            f"{_there_are(pool, label, rows)} and {holders} clients hold it, so {train} training and {test} "
            f"test images per label and client do not fit (at most {len(rows) // holders} together): lower "
            "data.train_per_label, data.test_per_label or data.labels_per_client, or use fewer clients."
        )
    tests = for_test[: holders * test].reshape(holders, test)
    trains = for_train[: holders * train].reshape(holders, train)
    unused = for_train[holders * train :]
    fresh = min(validation, len(unused) // holders)
    held_out = validation - fresh
    if held_out >= train:
        raise InputError(
            f"data.validation_per_label = {validation} leaves no training image of label {label}: "
            f"only {len(unused)} images are unused and {train} are trained on; lower it."
        )
    fresh_rows = unused[: holders * fresh].reshape(holders, fresh)
    validations = np.concatenate([fresh_rows, trains[:, :held_out]], axis=1)
    return _Shares(trains[:, held_out:], tests, validations, held_out=held_out)


def _shared(pool: Pool, options: DataOptions, label: int, holders: int, rows: Rows) -> _Shares:
    train, test, validation = _resolved(options)
    for_test, for_train = _candidates(pool, rows, test)
    if len(for_test) < test or len(for_train) < train + validation:
        raise InputError(
            f"{_there_are(pool, label, rows)}, so {train} training, {test} test and {validation} validation "
            "images per label do not fit: lower "
            "data.train_per_label, data.test_per_label or data.validation_per_label."
        )
    # Validation images are not trained on: the unused ones, but at least one client's share.
    unused = len(for_train) - holders * train
    validating = min(max(unused, validation), holders * validation)
    training = for_train[validating:]
    return _Shares(
        _deal(training, holders, train),
        _deal(for_test[:test], holders, test),
        _deal(for_train[:validating], holders, validation),
        factor=holders * train / len(training),
    )


def _deal(rows: Rows, holders: int, each: int) -> Rows:
    """Deal rows in turn, from the start again as often as needed: no client gets a row twice."""
    return np.resize(rows, (holders, each))


def _candidates(pool: Pool, rows: Rows, testing: int) -> tuple[Rows, Rows]:
    """Rows of a class to test on and to train on; a user's `test` column is respected."""
    if pool.test is None:
        return rows[:testing], rows[testing:]
    return rows[pool.test[rows]], rows[~pool.test[rows]]


def _resolved(options: DataOptions) -> Counts:
    return Counts(
        options.train_per_label or 0, options.test_per_label or 0, options.validation_per_label or 0
    )


def _there_are(pool: Pool, label: int, rows: Rows) -> str:
    there = f"{pool.name} has {len(rows)} images of label {label}"
    return there if pool.test is None else f"{there} ({int(pool.test[rows].sum())} of them for testing)"

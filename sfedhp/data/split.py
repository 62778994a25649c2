"""Splitting the rows of each client into training, test and validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Pool, Rows


class Split(NamedTuple):
    """Row numbers of each client, by client id."""

    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    validation: tuple[Rows, ...]
    notes: tuple[str, ...] = ()  # lines worth printing


def split_owned(
    pool: Pool, owner: NDArray[np.int64], clients: int, options: DataOptions, draw: np.random.Generator
) -> Split:
    """Split each client's rows: by the `test` column, else `test_share` of them; then validation rows.

    Raises:
        InputError: a client would have nothing to train on or nothing to be tested on.
    """
    parts: list[tuple[Rows, Rows, Rows]] = []
    group = pool.strata.group
    for client in range(clients):
        rows = draw.permutation(np.flatnonzero(owner == client))
        is_test = _test_rows(group[rows], options.test_share) if pool.test is None else pool.test[rows]
        _check_both(pool, client, rows, is_test)
        train, test = rows[~is_test], rows[is_test]
        is_validation = is_held_for_validation(group[train], options.validation_per_label or 0)
        parts.append((np.sort(train[~is_validation]), np.sort(test), np.sort(train[is_validation])))
    train_rows, test_rows, validation_rows = zip(*parts, strict=True)
    return Split(train_rows, test_rows, validation_rows)


def without_label_counts(options: DataOptions) -> DataOptions:
    """The options of a split without counts per label, which have no effect there."""
    return replace(
        options,
        labels_per_client=None,
        train_per_label=None,
        test_per_label=None,
        validation_per_label=options.validation_per_label or 0,
    )


def unlearnable_class(pool: Pool, train: Sequence[Rows], test: Sequence[Rows]) -> str | None:
    """A sentence on a class that some row tests and no row trains; None if there is none.

    Args:
        pool: all rows.
        train: the rows that each client trains on.
        test: the rows that each client is tested on.
    """
    trained, tested = (np.unique(pool.labels[np.concatenate(part)]) for part in (train, test))
    unseen = np.setdiff1d(tested, trained)
    if not len(unseen):
        return None
    label, names = int(unseen[0]), pool.names.classes
    return (
        f"{pool.name}: class {repr(names[label]) if names else label} occurs only in rows to test on, so no "
        f"model can learn it: remove its rows, or move some to training."
    )


def _test_rows(labels: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """A share of the rows, spread over the labels as evenly as whole rows allow; never none and never all."""
    rank, size = _rank_within(labels)
    wanted = min(max(round(share * len(labels)), 1), len(labels) - 1)
    chosen = np.zeros(len(labels), np.bool_)
    # The k-th of a label's m rows has position (k + ½)/m: the lowest positions take a share of each label.
    chosen[np.argsort((rank + 0.5) / size, kind="stable")[: max(wanted, 0)]] = True
    return chosen


def is_held_for_validation(labels: NDArray[np.int64], each: int) -> NDArray[np.bool_]:
    """At most `each` rows of a label and never more than half, so that every label stays in training."""
    rank, size = _rank_within(labels)
    return rank < np.minimum(each, size // 2)


def _rank_within(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row: how many rows of its label come before it, and how many there are."""
    order = np.argsort(labels, kind="stable")
    _, first, back, size = np.unique(
        labels[order], return_index=True, return_inverse=True, return_counts=True
    )
    rank, sizes = np.empty_like(order), np.empty_like(order)
    rank[order] = np.arange(len(labels)) - first[back]
    sizes[order] = size[back]
    return rank, sizes


def _check_both(pool: Pool, client: int, rows: Rows, is_test: NDArray[np.bool_]) -> None:
    if is_test.all():
        raise InputError(
            f"{pool.name}: {pool.client_name(client)} has no rows to train on ({len(rows)} to test)."
        )
    if not is_test.any():
        raise InputError(
            f"{pool.name}: {pool.client_name(client)} has no rows to test on: "
            "a client needs at least one row to train on and one to test on."
        )

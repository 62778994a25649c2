from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Federation, federate, from_arrays

EVERY = ["paper", "paper-as-written", "dirichlet", "shards", "iid", "given"]


def random_arrays(seed: int, rows: int, classes: int, clients: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "inputs": draw.normal(size=(rows, 2)),
        "labels": draw.integers(0, classes, rows),
        "client": np.concatenate(
            [np.arange(2 * clients) % clients, draw.integers(0, clients, rows - 2 * clients)]
        ),
    }


def check_whole(federation: Federation, rows: int) -> None:
    """Everybody can train and test, no row is used twice, and all are used."""
    assert all(len(part) for part in (*federation.train, *federation.test))
    used = np.concatenate([*federation.train, *federation.test, *federation.validation])
    np.testing.assert_array_equal(np.sort(used), np.arange(rows))


@settings(max_examples=150, deadline=None)
@given(
    partition=st.sampled_from(["dirichlet", "shards", "iid", "given"]),
    clients=st.integers(1, 8),
    extra=st.integers(0, 60),
    classes=st.integers(2, 6),
    concentration=st.sampled_from([1e-6, 0.1, 0.5, 100.0]),
    share=st.floats(0.01, 0.99),
    validation=st.integers(0, 3),
    with_test=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_all_rows_are_divided_and_no_one_goes_without(
    partition, clients, extra, classes, concentration, share, validation, with_test, seed
):
    rows = 4 * clients + 8 + extra
    arrays = random_arrays(seed, rows, classes, clients)
    # The first rows are one for each client, then one more: with a test column they are one of each kind.
    test = np.arange(rows) < clients if partition == "given" else np.arange(rows) % 2 > 0
    if with_test:  # a class with test rows alone is refused
        assume(set(arrays["labels"][test]) <= set(arrays["labels"][~test]))
    options = DataOptions(
        partition=partition,
        concentration=concentration,
        test_share=share,
        validation_per_label=validation,
    )
    federation, _ = from_arrays(
        **arrays,
        test=test if with_test else None,
        options=options,
        edges=clients,
        clients_per_edge=1,
        seed=seed,
    )
    check_whole(federation, rows)
    if with_test:
        assert test[np.concatenate(federation.test)].all()
        assert not test[np.concatenate([*federation.train, *federation.validation])].any()
    if not with_test and validation == 0:
        for train, tested in zip(federation.train, federation.test, strict=True):
            held = len(train) + len(tested)
            assert len(tested) == min(max(round(share * held), 1), held - 1)
    if partition == "given":
        for client, (train, tested) in enumerate(zip(federation.train, federation.test, strict=True)):
            assert set(arrays["client"][np.concatenate([train, tested])]) == {client}
    if partition == "iid" and not with_test:
        sizes = [
            sum(len(part[client]) for part in (federation.train, federation.test, federation.validation))
            for client in range(clients)
        ]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("partition", EVERY)
def test_the_seed_alone_decides(partition):
    arrays = random_arrays(0, 400, 4, 6)
    options = DataOptions(partition=partition, edge_order="random")

    def rows(seed: int) -> tuple[list[Any], Any]:
        federation, _ = from_arrays(**arrays, options=options, edges=2, clients_per_edge=3, seed=seed)
        return [part.tolist() for part in (*federation.train, *federation.test)], federation.seats.tolist()

    assert rows(1) == rows(1)
    assert rows(1)[0] != rows(2)[0]
    assert len({str(rows(seed)[1]) for seed in range(5)}) > 1


@pytest.mark.parametrize("partition", EVERY)
def test_the_resolved_options_give_the_same_federation(partition):
    arrays = random_arrays(0, 400, 4, 6)
    first, resolved = from_arrays(
        **arrays,
        options=DataOptions(partition=partition, scale="standard"),
        edges=2,
        clients_per_edge=3,
        seed=7,
    )
    again, same = from_arrays(**arrays, options=resolved, edges=2, clients_per_edge=3, seed=7)
    assert resolved == same
    assert resolved.partition == partition
    assert resolved.scale == "standard"
    for part in ("train", "test", "validation"):
        for one, other in zip(getattr(first, part), getattr(again, part), strict=True):
            np.testing.assert_array_equal(one, other)


def test_dirichlet_mixes_as_its_concentration_says():
    def commonest(concentration: float) -> float:
        options = DataOptions(partition="dirichlet", concentration=concentration)
        federation, _ = federate(options, edges=4, clients_per_edge=5, seed=0)
        held = np.array([holding.train for holding in federation.describe()])
        return float((held.max(1) / held.sum(1)).mean())

    assert commonest(1000.0) < 0.15 < 0.3 < commonest(0.3) < commonest(0.01)


def test_dirichlet_feeds_those_who_drew_too_few_and_says_so():
    federation, _ = federate(
        DataOptions(partition="dirichlet", concentration=0.001), edges=10, clients_per_edge=10, seed=0
    )
    check_whole(federation, 4400)
    assert "rows were moved from the largest clients to those with too few" in federation.notes[0]


def test_shards_hold_few_labels_and_equal_rows():
    federation, _ = federate(DataOptions(partition="shards"), edges=4, clients_per_edge=5, seed=0)
    held = np.array([holding.train for holding in federation.describe()])
    # 40 shards of 110 rows over classes of 440: a shard holds one label.
    assert ((held > 0).sum(1) <= 2).all()
    assert [
        len(train) + len(test) for train, test in zip(federation.train, federation.test, strict=True)
    ] == [220] * 20
    with pytest.raises(InputError, match=r"4400 rows do not make 20000 shards: lower data.shards_per_client"):
        federate(DataOptions(partition="shards", shards_per_client=1000), edges=4, clients_per_edge=5, seed=0)


def test_the_test_share_is_spread_over_the_labels():
    labels = np.repeat([0, 1, 2], [40, 20, 8])
    federation, _ = from_arrays(
        np.zeros((68, 1)), labels, client=np.zeros(68, int), edges=1, clients_per_edge=1, seed=5
    )
    assert federation.describe()[0].test == (10, 5, 2)


def test_counts_without_meaning_are_left_out_and_said():
    options = DataOptions(partition="iid", train_per_label=5, labels_per_client=2)
    federation, resolved = federate(options, edges=2, clients_per_edge=2, seed=0)
    assert federation.notes == (
        "data.labels_per_client has no effect with the partition iid: ignored.",
        "data.train_per_label has no effect with the partition iid: ignored.",
    )
    assert resolved == DataOptions(partition="iid", validation_per_label=0, scale="unit")


def test_too_few_rows_for_the_clients():
    with pytest.raises(InputError, match="4400 rows are too few for 2500 clients: use fewer clients"):
        federate(DataOptions(partition="iid"), edges=50, clients_per_edge=50, seed=0)

"""The splits of other code bases: PFLlib's, as it published them, and MTGC's by its rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Federation, from_arrays

# What each client holds of each label, from `config.json` of dataset folders of PFLlib. Of Fashion-MNIST they
# are public in FJJT/PFL-Non-IID and thatmartinlau/PFLlib (20 clients, all labels), TsingZ0/DBE (20 clients,
# α = 0.1) and ryota7777/FIDSUS (50 clients, α = 0.3).
ALL_LABELS = {
    0: (72, 276, 78, 190, 294, 275, 233, 60, 80, 257),
    18: (250, 315, 314, 218, 92, 217, 131, 338, 63, 310),
    19: (3089, 3712, 3524, 2540, 3714, 3189, 3831, 3009, 3586, 3867),
}
DIRICHLET = {
    0: (67, 1, 0, 0, 0, 0, 2, 0, 5, 7),
    5: (5473, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    19: (1, 491, 1876, 267, 1, 2060, 1, 0, 0, 1),
}
FIFTY = {0: (0, 55, 110, 139, 37, 1577, 0, 0, 0, 0), 48: (1424, 0, 0, 0, 0, 0, 0, 0, 0, 0)}
PUBLISHED = [
    ({"partition": "pfllib", "labels_per_client": 10}, 20, ALL_LABELS),
    ({"partition": "pfllib-dirichlet", "concentration": 0.1}, 20, DIRICHLET),
    ({"partition": "pfllib-dirichlet", "concentration": 0.3}, 50, FIFTY),
]


def divided(clients: int, rows: int = 7000, edges: int = 1, seed: int = 0, **options: Any) -> Federation:
    """Ten labels with so many rows each; an input is its row's number."""
    labels = np.repeat(np.arange(10), rows)
    inputs = np.arange(len(labels), dtype=np.float64).reshape(-1, 1)
    return from_arrays(
        inputs, labels, options=DataOptions(**options), edges=edges, clients_per_edge=clients, seed=seed
    )[0]


def held(federation: Federation) -> np.ndarray[Any, Any]:
    """Rows of each label of each client."""
    both = zip(federation.train, federation.test, strict=True)
    return np.stack([np.bincount(federation.labels[np.concatenate(rows)], minlength=10) for rows in both])


@pytest.mark.parametrize(("options", "clients", "expected"), PUBLISHED)
def test_clients_hold_what_pfllib_published(options: Any, clients: int, expected: Any) -> None:
    one, other = divided(clients, **options), divided(clients, seed=5, **options)
    table = held(one)
    for client, counts in expected.items():
        assert tuple(table[client]) == counts
    assert table.sum() == 70000
    for train, test, same in zip(one.train, one.test, other.train, strict=True):
        assert len(train) == len(np.concatenate([train, test])) * 3 // 4
        np.testing.assert_array_equal(train, same)


def test_training_and_test_rows_are_those_of_scikit_learn() -> None:
    """PFLlib splits by scikit-learn, with NumPy's global generator as the division by labels has left it."""
    model_selection = pytest.importorskip("sklearn.model_selection")
    federation = divided(4, rows=40, partition="pfllib", labels_per_client=5)
    np.random.seed(1)
    sizes = [np.random.randint(4, 20, 1) for _ in range(10)]
    assert [len(each) for each in sizes] == [1] * 10
    for train, test in zip(federation.train, federation.test, strict=True):
        rows = np.concatenate([train, test])
        # In PFLlib's order: label by label, and ascending within a label.
        training, testing = model_selection.train_test_split(np.sort(rows), train_size=0.75, shuffle=True)
        np.testing.assert_array_equal(np.sort(training), train)
        np.testing.assert_array_equal(np.sort(testing), test)


def test_clients_with_two_labels() -> None:
    table = held(divided(20, rows=700, partition="pfllib"))
    assert ((table > 0).sum(1) == 2).all()
    assert (np.flatnonzero(table[0]) == [0, 1]).all()
    assert (np.flatnonzero(table[4]) == [2, 3]).all()
    with_validation = divided(20, rows=700, partition="pfllib", validation_per_label=3)
    assert [len(rows) for rows in with_validation.validation] == [6] * 20
    assert held(with_validation).sum() == 7000 - 120


def test_a_client_has_a_mini_batch_to_test_on_or_the_division_is_drawn_again() -> None:
    options: dict[str, Any] = {"partition": "pfllib-dirichlet", "concentration": 0.1}
    assert held(divided(20, rows=700, **options)).sum(1).min() == 44, "in the eighth division"
    with pytest.raises(InputError, match="in 1000 divisions some client always gets fewer than 40 rows"):
        divided(20, rows=200, **{**options, "concentration": 0.005})
    with pytest.raises(InputError, match="10 rows of a label are too few for 20 clients: use fewer"):
        divided(20, rows=10, partition="pfllib", labels_per_client=10)


@pytest.mark.parametrize("labels", [11, 1])
def test_labels_that_do_not_fit_are_refused(labels: int) -> None:
    clients = 20 if labels > 10 else 9
    with pytest.raises(
        InputError, match=f"data.labels_per_client = {labels} cannot be used: the data has 10"
    ):
        divided(clients, rows=20, partition="pfllib", labels_per_client=labels)


def test_a_client_that_gets_a_single_row_is_refused() -> None:
    with pytest.raises(InputError, match="rows, too few to train and to test on: use fewer clients"):
        divided(30, rows=4, partition="pfllib-dirichlet", concentration=0.1)


def test_edges_differ_in_their_labels_and_so_do_their_clients() -> None:
    options: dict[str, Any] = {"partition": "nested-dirichlet", "concentration": 0.1, "test_share": 0.2}
    federation = divided(4, rows=200, edges=5, **options)
    table = held(federation)
    assert (table.sum(1) == 100).all(), "all clients hold equally many rows"
    used = np.concatenate([*federation.train, *federation.test])
    assert len(np.unique(used)) == len(used) == 2000
    edges = table.reshape(5, 4, 10).sum(1)
    assert (np.sort(edges, 1)[:, -3:].sum(1) > 0.6 * edges.sum(1)).all(), "three labels have most rows"
    even = held(divided(4, rows=200, edges=5, **{**options, "concentration": 1000.0}))
    assert even.min() > 0
    assert np.abs(even / 10 - 1).max() < np.abs(table / 10 - 1).max()
    again = divided(4, rows=200, edges=5, seed=1, **options)
    assert (held(again) != table).any()
    with pytest.raises(InputError, match="20 rows are too few for 20 clients"):
        divided(4, rows=2, edges=5, **options)

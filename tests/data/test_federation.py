from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Holding, federate, from_arrays, from_dataset
from sfedhp.data.seating import clients_to_hold_out, seat

INPUTS = np.random.default_rng(0).integers(0, 256, (40, 2, 3, 3), np.uint8)
LABELS = np.arange(40) % 4
PLACE: dict[str, Any] = {"edges": 2, "clients_per_edge": 2, "seed": 0}


def test_describe_counts_what_each_client_holds_edge_by_edge():
    federation, _ = federate(DataOptions(edge_order="random"), edges=4, clients_per_edge=5, seed=1)
    rows = federation.describe()
    assert [row.client for row in rows] == federation.seats.ravel().tolist()
    assert [row.edge for row in rows] == [edge for edge in range(4) for _ in range(5)]
    client = rows[0].client
    held = [50 if label in (client % 10, (client + 1) % 10) else 0 for label in range(10)]
    assert rows[0] == Holding(client, 0, tuple(held), tuple(held), tuple(number // 5 for number in held))


def test_describe_leaves_empty_seats_out():
    federation, _ = from_arrays(INPUTS, LABELS, client=np.arange(40) % 3, **PLACE)
    assert [(row.client, row.edge) for row in federation.describe()] == [(0, 0), (1, 0), (2, 1)]


@settings(max_examples=100, deadline=None)
@given(
    edges=st.integers(1, 6),
    clients_per_edge=st.integers(1, 6),
    missing=st.integers(0, 5),
    order=st.sampled_from(["consecutive", "random", "labels"]),
    seed=st.integers(0, 2**32),
)
def test_seats_are_a_permutation_of_the_ids(edges, clients_per_edge, missing, order, seed):
    clients = edges * clients_per_edge - min(missing, clients_per_edge - 1)
    holdings = np.random.default_rng(seed).integers(1, 9, (clients, 4))
    seats = seat(holdings, order, sizes=[clients_per_edge] * edges, seed=seed)
    assert seats.shape == (edges, clients_per_edge)
    flat = seats.ravel()
    assert sorted(flat[:clients]) == list(range(clients))
    assert (flat[clients:] == -1).all()
    assert (seats >= 0).any(1).all()
    if order == "consecutive":
        assert flat[:clients].tolist() == list(range(clients))


def test_label_groups_put_alike_clients_on_one_edge():
    holdings = np.eye(4, dtype=int)[[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]] * 7
    seats = seat(holdings, "labels", sizes=[3] * 4, seed=0)
    assert [set(members % 4) for members in seats] == [{0}, {1}, {2}, {3}]
    federation, _ = federate(DataOptions(edge_order="labels"), edges=4, clients_per_edge=5, seed=0)
    labels_on_edges = [{client % 10 for client in members} for members in federation.seats.tolist()]
    assert max(len(labels) for labels in labels_on_edges) == 3


def test_an_edge_without_clients_is_refused_with_what_to_set():
    with pytest.raises(InputError, match=r"5 clients at 4 per edge fill only 2 of 3 edges: set edges=2"):
        seat(np.ones((5, 2), int), "consecutive", sizes=[4, 4, 4], seed=0)
    with pytest.raises(
        InputError, match=r"\[4, 2\] has seats for 6 clients, and 4 clients fill only 1 of 2 edges"
    ):
        seat(np.ones((4, 2), int), "consecutive", sizes=[4, 2], seed=0)
    with pytest.raises(
        InputError, match=r"clients_per_edge = \[2, 0\] is out of range: every edge must have"
    ):
        from_arrays(INPUTS, LABELS, edges=2, clients_per_edge=[2, 0], seed=0)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    missing=st.integers(0, 5),
    order=st.sampled_from(["consecutive", "random", "labels"]),
    seed=st.integers(0, 2**32),
)
def test_edges_may_have_different_numbers_of_clients(sizes, missing, order, seed):
    clients = sum(sizes) - min(missing, sizes[-1] - 1)
    holdings = np.random.default_rng(seed).integers(1, 9, (clients, 4))
    seats = seat(holdings, order, sizes=sizes, seed=seed)
    assert seats.shape == (len(sizes), max(sizes))
    assert (seats >= 0).sum(1).tolist() == [*sizes[:-1], sizes[-1] - (sum(sizes) - clients)]
    taken = [row[:size] for row, size in zip(seats.tolist(), sizes, strict=True)]
    assert sorted(client for row in taken for client in row if client >= 0) == list(range(clients))
    assert all((row[size:] == -1).all() for row, size in zip(seats, sizes, strict=True))


def test_label_groups_follow_uneven_edges():
    holdings = np.eye(2, dtype=int)[[0, 1, 1, 0, 1, 1]] * 7
    seats = seat(holdings, "labels", sizes=[2, 4], seed=0)
    assert [set(row[row >= 0]) for row in seats] == [{0, 3}, {1, 2, 4, 5}]


def test_uneven_edges_of_arrays_and_a_list_that_contradicts():
    uneven: dict[str, Any] = {"clients_per_edge": [2, 4], "seed": 0}
    federation, _ = from_arrays(INPUTS, LABELS, edges=2, **uneven)
    assert federation.seats.tolist() == [[0, 1, -1, -1], [2, 3, 4, 5]]
    assert not [note for note in federation.notes if "empty" in note], "no seat of these is missing a client"
    federation.check_seats([2, 4])
    federation.check_seats([3, 4])
    with pytest.raises(InputError, match=r"set edges = 2 and clients_per_edge = \[2, 4\]"):
        federation.check_seats([4, 2])
    with pytest.raises(InputError, match=r"edges = 3, but clients_per_edge = \[2, 4\] has 2 numbers"):
        from_arrays(INPUTS, LABELS, edges=3, **uneven)


Scale = Literal["unit", "standard", "per_pixel", "none"]


def scaled(scale: Scale, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    federation, resolved = from_arrays(INPUTS, LABELS, options=DataOptions(scale=scale), **PLACE)
    assert federation.scale == resolved.scale == scale
    training = INPUTS[np.concatenate(federation.train)] / 255
    rows = federation.test[1]
    return federation.scaled(rows, dtype), INPUTS[rows] / 255, training


def test_unit_scale():
    got, plain, _ = scaled("unit")
    np.testing.assert_allclose(got, plain, rtol=1e-15)


def test_no_scale():
    got, plain, _ = scaled("none")
    np.testing.assert_array_equal(got, np.round(plain * 255))


def test_standard_scale_is_per_channel_from_training_images():
    got, plain, training = scaled("standard")
    mean = training.mean((0, 2, 3), keepdims=True)
    deviation = training.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(got, (plain - mean) / deviation, rtol=1e-10)


def test_per_pixel_scale_is_from_training_images():
    got, plain, training = scaled("per_pixel")
    np.testing.assert_allclose(
        got, (plain - training.mean(0)) / (training.std(0) + 0.001), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("scale", ["unit", "none", "standard", "per_pixel"])
def test_scaled_rows_are_of_the_asked_type_and_whatever_their_company(scale):
    federation, _ = from_arrays(INPUTS, LABELS, options=DataOptions(scale=scale), **PLACE)
    every = federation.scaled(np.arange(40), np.float32)
    assert every.dtype == np.float32
    assert every.flags.writeable
    np.testing.assert_array_equal(federation.scaled(np.array([7, 3]), "float32"), every[[7, 3]])


def test_flat_images_are_one_channel_and_constant_ones_stay_finite():
    inputs = INPUTS.reshape(40, -1)
    federation, _ = from_arrays(inputs, LABELS, options=DataOptions(scale="standard"), **PLACE)
    training = inputs[np.concatenate(federation.train)]
    np.testing.assert_allclose(
        federation.scaled(np.arange(3), "f8"), (inputs[:3] - training.mean()) / training.std(), rtol=1e-10
    )
    constant, _ = from_arrays(np.full_like(inputs, 9), LABELS, options=DataOptions(scale="standard"), **PLACE)
    np.testing.assert_array_equal(constant.scaled(np.arange(3), "f8"), np.zeros((3, 18)))


def test_many_training_images_are_summed_in_pieces():
    federation, _ = federate(DataOptions(scale="per_pixel"), edges=4, clients_per_edge=5, seed=0)
    training = federation.inputs[np.concatenate(federation.train)].astype(float) / 255
    assert len(training) == 2000
    got = federation.scaled(np.arange(5), "float64")
    expected = (federation.inputs[:5] / 255 - training.mean(0)) / (training.std(0) + 0.001)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", ["unit", "per_pixel"])
def test_floating_inputs_are_used_as_they_are(scale):
    values = INPUTS.astype(np.float64) * 3 + 0.1
    federation, resolved = from_arrays(values, LABELS, options=DataOptions(scale=scale), **PLACE)
    assert federation.scale == resolved.scale == "none"
    assert federation.notes == (
        f"data.scale = '{scale}' is for images of uint8: floating inputs stay as they are.",
    )
    np.testing.assert_array_equal(federation.scaled(np.arange(40), "float64"), values)
    assert from_arrays(values, LABELS, **PLACE)[0].notes == ()


def test_a_torch_dataset_gives_the_same_federation_as_its_arrays():
    dataset = TensorDataset(torch.tensor(INPUTS), torch.tensor(LABELS))
    options = DataOptions(partition="paper", scale="standard")
    test = np.arange(40) % 8 > 3
    left, _ = from_dataset(dataset, test=test, options=options, **PLACE)
    right, resolved = from_arrays(INPUTS, LABELS, test=test, options=options, **PLACE)
    assert resolved.source == "arrays"
    for part in ("train", "test", "validation"):
        for one, other in zip(getattr(left, part), getattr(right, part), strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(left.inputs, right.inputs)


class Pairs(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, row):
        return self.rows[row]

    def __len__(self):
        return len(self.rows)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_datasets_of_other_shapes():
    rows = [([float(row), 1.0], row % 2) for row in range(12)]
    federation, _ = from_dataset(Pairs(rows), client=np.arange(12) % 4, **PLACE)
    np.testing.assert_array_equal(federation.inputs[:, 0], np.arange(12))
    with pytest.raises(InputError, match=r"must have a length and give pairs \(input, label\)"):
        from_dataset(Stream(), **PLACE)
    with pytest.raises(InputError, match=r"must have a length and give pairs \(input, label\)"):
        from_dataset(Pairs([(1.0,)]), **PLACE)
    with pytest.raises(InputError, match="`inputs` has rows of different lengths"):
        from_dataset(Pairs([([1.0], 0), ([1.0, 2.0], 1)]), **PLACE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_tensors_of_any_kind_are_taken(dtype):
    inputs = (torch.tensor(INPUTS[:, 0, 0]) / 16).to(dtype).requires_grad_()
    from_tensor, _ = from_arrays(inputs, torch.tensor(LABELS), **PLACE)
    pairs, _ = from_dataset(TensorDataset(inputs, torch.tensor(LABELS)), **PLACE)
    for federation in (from_tensor, pairs):
        assert federation.inputs.dtype == np.float32
        np.testing.assert_array_equal(federation.inputs, inputs.detach().float().numpy())


@pytest.mark.parametrize("inputs", [torch.ones(40, 3).to_sparse(), torch.ones(40, 3, device="meta")])
def test_a_tensor_without_plain_numbers_is_refused_in_a_sentence(inputs):
    with pytest.raises(InputError, match="`inputs` cannot be read as an array of numbers") as caught:
        from_arrays(inputs, LABELS, **PLACE)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="`inputs` cannot be read as an array of numbers"):
        from_dataset(Pairs([(row, 0) for row in inputs]), **PLACE)


def test_rows_that_are_tensors_are_taken():
    rows = [torch.full((3,), float(row), requires_grad=True) for row in range(40)]
    federation, _ = from_arrays(rows, LABELS, **PLACE)
    np.testing.assert_array_equal(federation.inputs[:, 1], np.arange(40))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edges": 0}, "edges = 0 is out of range: it must be at least 1"),
        ({"clients_per_edge": 0}, "clients_per_edge = 0 is out of range"),
        ({"seed": -1}, "seed = -1 is out of range: it must be at least 0"),
        ({"options": DataOptions(test_share=0.0)}, "data.test_share = 0.0 is out of range"),
        ({"options": DataOptions(test_share=1.0)}, "data.test_share = 1.0 is out of range"),
        ({"options": DataOptions(concentration=0.0)}, "data.concentration = 0.0 is out of range"),
        ({"options": DataOptions(shards_per_client=0)}, "data.shards_per_client = 0 is out of range"),
        ({"options": DataOptions(labels_per_client=0)}, "data.labels_per_client = 0 is out of range"),
        ({"options": DataOptions(validation_per_label=-1)}, "data.validation_per_label = -1 is out of range"),
        ({"options": DataOptions(synthetic_alpha=-1.0)}, "data.synthetic_alpha = -1.0 is out of range"),
        ({"options": DataOptions(partition="mine")}, "data.partition = 'mine' is not known"),  # type: ignore[arg-type]
        ({"options": DataOptions(scale="x")}, "data.scale = 'x' is not known"),  # type: ignore[arg-type]
        ({"options": DataOptions(edge_order="x")}, "data.edge_order = 'x' is not known"),  # type: ignore[arg-type]
        ({"options": DataOptions(rule="x")}, "data.rule = 'x' is not known"),  # type: ignore[arg-type]
    ],
)
def test_options_out_of_range(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        federate(**({"options": DataOptions()} | PLACE | changes))
    with pytest.raises(InputError, match=sentence):
        from_arrays(INPUTS, LABELS, **(PLACE | changes))


def test_arrays_are_not_a_source_that_can_be_loaded():
    _, resolved = from_arrays(INPUTS, LABELS, **PLACE)
    with pytest.raises(InputError, match="give them again with from_arrays"):
        federate(resolved, **PLACE)


def test_clients_that_are_held_out_leave_no_seats_behind():
    layout: dict[str, Any] = {"edges": 2, "clients_per_edge": 3, "seed": 0}
    whole, _ = federate(DataOptions(), **layout)
    rest, options = federate(DataOptions(held_out=1), **layout)
    assert options.held_out == 1
    assert clients_to_hold_out(whole.seats, 1) == [2, 5]
    assert rest.seats.tolist() == [[0, 1], [2, 3]]
    kept = [rows.tolist() for client, rows in enumerate(whole.train) if client not in (2, 5)]
    assert [rows.tolist() for rows in rest.train] == kept
    assert len(rest.test) == len(rest.validation) == 4
    with pytest.raises(InputError, match=r"data.held_out = 3 leaves no client"):
        federate(DataOptions(held_out=3), **layout)


SEVEN: dict[str, Any] = {"client": np.arange(40) % 7, "edges": 2, "clients_per_edge": 5, "seed": 0}


def test_each_edge_holds_out_the_last_clients_it_has():
    whole, _ = from_arrays(INPUTS, LABELS, **SEVEN)
    assert whole.seats.tolist() == [[0, 1, 2, 3, 4], [5, 6, -1, -1, -1]]
    assert clients_to_hold_out(whole.seats, 1) == [4, 6]
    rest, _ = from_arrays(INPUTS, LABELS, options=DataOptions(held_out=1), **SEVEN)
    assert rest.seats.tolist() == [[0, 1, 2, 3], [4, -1, -1, -1]]
    np.testing.assert_array_equal(rest.train[4], whole.train[5])
    assert rest.notes == ("3 of 8 seats are empty: the data has 7 clients, 2 of which are held out.",)


def test_an_edge_is_never_emptied_by_holding_out():
    with pytest.raises(
        InputError, match=r"data.held_out = 2 leaves no client under edge 1, which has 2 in all"
    ):
        from_arrays(INPUTS, LABELS, options=DataOptions(held_out=2), **SEVEN)


def test_the_last_seats_of_full_edges_are_held_out():
    options: dict[str, Any] = {"edges": 3, "clients_per_edge": 4, "seed": 5}
    whole, _ = federate(DataOptions(edge_order="random"), **options)
    assert clients_to_hold_out(whole.seats, 2) == whole.seats[:, -2:].ravel().tolist()
    rest, _ = federate(DataOptions(edge_order="random", held_out=2), **options)
    assert rest.seats.shape == (3, 2)
    assert rest.notes == whole.notes


def test_a_class_that_only_test_rows_have_is_refused_where_the_user_says_which_they_are():
    labels = np.arange(40) % 3
    labels[7] = 3
    with pytest.raises(
        InputError, match=r"the data: class 3 occurs only in rows to test on, so no model can"
    ):
        from_arrays(INPUTS, labels, test=np.arange(40) % 8 > 5, **PLACE)
    drawn, _ = from_arrays(INPUTS, labels, options=DataOptions(test_share=0.9), **PLACE)
    assert any("class 3 occurs only in rows to test on" in note for note in drawn.notes)

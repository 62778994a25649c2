from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Federation, federate, from_arrays
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.roles.loading import client_data_options, load_client
from sfedhp.deploy.topology import lay_out
from sfedhp.runs.build import build_network
from sfedhp.runs.federation import federation_of
from sfedhp.runs.newcomers import newcomer_of

INPUTS = np.arange(60.0).reshape(20, 3)
LABELS = np.arange(20) % 2
CLIENT = np.arange(20) // 2 % 3


def saved(folder: Path, **arrays: Any) -> str:
    path = folder / "my.npz"
    np.savez(path, **arrays)
    return str(path)


def load(source: str, edges: int = 2, clients_per_edge: int = 2, **options: Any) -> Federation:
    chosen = DataOptions(source, **options)
    return federate(chosen, edges=edges, clients_per_edge=clients_per_edge, seed=0)[0]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"labels": LABELS}, "my.npz has no array `inputs` (it holds labels)"),
        ({"inputs": INPUTS}, "my.npz has no array `labels` (it holds inputs)"),
        ({}, "my.npz has no array `inputs` (it holds nothing)"),
        (
            {"x": INPUTS, "labels": LABELS},
            "my.npz holds an array `x`, but the known ones are `inputs`, `labels`, `client`, `edge` and "
            "`test`: rename it, or leave it out.",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "clients": LABELS},
            "my.npz holds an array `clients`, but the known ones are `inputs`, `labels`, `client`, `edge` "
            "and `test`: did you mean `client`?",
        ),
        ({"inputs": INPUTS, "labels": LABELS, "is_test": LABELS > 0}, "did you mean `test`?"),
        ({"input": INPUTS, "labels": LABELS}, "did you mean `inputs`?"),
        ({"inputs": INPUTS, "labels": LABELS[:19]}, "`labels` must hold one value for each of the 20 rows"),
        (
            {"inputs": INPUTS, "labels": LABELS[:, None]},
            "`labels` must hold one value for each of the 20 rows",
        ),
        ({"inputs": INPUTS, "labels": LABELS, "client": LABELS[:9]}, "`client` must hold one value for each"),
        ({"inputs": INPUTS, "labels": LABELS, "test": LABELS[:9] > 0}, "`test` must hold one value for each"),
        ({"inputs": np.full((20, 3), np.nan), "labels": LABELS}, "`inputs` holds NaN, infinite or huge"),
        ({"inputs": np.full((20, 3), -np.inf), "labels": LABELS}, "`inputs` holds NaN, infinite or huge"),
        ({"inputs": np.full((20, 3), 1e39), "labels": LABELS}, "`inputs` holds NaN, infinite or huge"),
        ({"inputs": INPUTS.astype(str), "labels": LABELS}, "`inputs` must be numbers, not <U"),
        ({"inputs": INPUTS.astype(complex), "labels": LABELS}, "`inputs` must be numbers, not complex128"),
        ({"inputs": INPUTS[:, 0], "labels": LABELS}, "`inputs` must be (rows, features…)"),
        ({"inputs": INPUTS[:0], "labels": LABELS[:0]}, "`inputs` must be (rows, features…)"),
        ({"inputs": INPUTS, "labels": LABELS - 1}, "`labels` must be integers from 0 (found -1)"),
        ({"inputs": INPUTS, "labels": np.where(LABELS, 0.5, np.nan)}, "holds a NaN, infinite or huge"),
        ({"inputs": INPUTS, "labels": LABELS * 1.0}, "may be classes or quantities: set problem=regression"),
        ({"inputs": INPUTS, "labels": LABELS.astype(str)}, "`labels` must be integers from 0 (found <U"),
        ({"inputs": INPUTS, "labels": np.full(20, 2**64 - 1, np.uint64)}, "`labels` must be integers from 0"),
        (
            {"inputs": INPUTS, "labels": LABELS * 10**9},
            "my.npz has labels up to 1000000000, but only 2 of these 1000000001 classes have rows: "
            "number the classes 0, 1, 2, … without gaps, for example with np.unique(labels, "
            "return_inverse=True)[1].",
        ),
        ({"inputs": INPUTS, "labels": 7 + np.arange(20) % 3 * 100}, "only 3 of these 208 classes have rows"),
        ({"inputs": INPUTS, "labels": LABELS * 4}, "only 2 of these 5 classes have rows"),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": LABELS / 2},
            "`client` must be integers or text (found float in row 0)",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": np.array(["a", " "])[LABELS]},
            "`client` has an empty name in row 1",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": np.array(["a", "\ud800"])[LABELS]},
            "`client` has a name in row 1 that cannot be written as UTF-8",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": np.full(20, 0x110000, "<u4").view("<U1")},
            "`client` has text that is not Unicode: the file is damaged.",
        ),
        ({"inputs": INPUTS, "labels": LABELS, "edge": LABELS}, "`edge` needs `client`"),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": np.arange(20) % 5, "edge": np.arange(20) % 3},
            "client 0 is under two edges, 2 and 0: give each client one edge",
        ),
        ({"inputs": INPUTS, "labels": LABELS, "test": LABELS}, "`test` must be an array of bool, not int64"),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": np.arange(20) % 5},
            "my.npz has 5 clients, and edges and clients_per_edge give 4 seats: set them so that there are "
            "at least 5.",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": LABELS, "test": LABELS > 0},
            "client 0 has no rows to test on",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": LABELS, "test": LABELS == 0},
            "client 0 has no rows to train on (10 to test)",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": (np.arange(20) > 0).astype(int)},
            "client 0 has no rows to test on",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "client": LABELS},
            "2 clients at 2 per edge fill only 1 of 2 edges: set edges=1",
        ),
        ({"inputs": INPUTS[:7], "labels": LABELS[:7]}, "7 rows are too few for 4 clients"),
        (
            {"inputs": INPUTS, "labels": LABELS, "test": np.arange(20) < 3},
            "3 test rows are too few for 4 clients: use fewer clients.",
        ),
        (
            {"inputs": INPUTS, "labels": LABELS, "test": np.arange(20) >= 3},
            "3 training rows are too few for 4 clients: use fewer clients.",
        ),
    ],
)
def test_each_fault_has_its_sentence(tmp_path, arrays, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        load(saved(tmp_path, **arrays))


def test_a_class_without_rows_is_remarked_on(tmp_path):
    federation = load(saved(tmp_path, inputs=INPUTS, labels=1 + LABELS))
    assert federation.classes == 3
    assert federation.notes == ("1 of 3 classes have no rows in my.npz: 0.",)
    ten = np.where(np.arange(20) < 10, np.arange(20), 19)
    [note] = load(saved(tmp_path, inputs=INPUTS, labels=ten)).notes
    assert note == "9 of 20 classes have no rows in my.npz: 10, 11, 12, 13, 14, …"
    assert load(saved(tmp_path, inputs=INPUTS, labels=LABELS)).notes == ()


def test_a_size_of_images_that_has_no_effect_is_remarked_on(tmp_path):
    [note] = load(saved(tmp_path, inputs=INPUTS, labels=LABELS), image_size=8).notes
    assert note == "data.image_size has no effect on my.npz, which is no folder of images: ignored."


def test_classes_that_are_known_are_used(tmp_path):
    """Of ten classes a small device has two, and fewer rows than classes."""
    place: dict[str, Any] = {"edges": 1, "clients_per_edge": 1, "seed": 0}
    options = DataOptions(saved(tmp_path, inputs=INPUTS[:6], labels=LABELS[:6] * 9))
    federation, _ = federate(options, **place, classes=10)
    assert (federation.classes, federation.notes) == (10, ())
    assert len(federation.describe()[0].train) == 10
    with pytest.raises(InputError, match=r"labels up to 9, but there are 9 classes, 0 to 8: leave such rows"):
        federate(options, **place, classes=9)
    with pytest.raises(InputError, match="only 2 of these 10 classes have rows"):
        federate(options, **place)


def test_a_newcomer_and_a_device_may_have_fewer_rows_than_classes(tmp_path):
    path = saved(tmp_path, inputs=INPUTS[:6], labels=LABELS[:6] * 9)
    newcomer = newcomer_of(Experiment(), path)
    assert sorted({*newcomer.labels.tolist(), *newcomer.test_labels.tolist()}) == [0, 9]
    site = lay_out(FederationFile(inputs=(3,), classes=10), Experiment()).clients[0]
    network = build_network(site.experiment, site.shape, site.classes)
    held = load_client(site, network, client_data_options(DataOptions(), path))
    assert (int(held.task.sizes), int(held.test.sizes), held.task.classes) == (4, 2, 10)


def test_object_arrays_are_never_unpickled(tmp_path):
    objects = np.array([{"a": 1}] * 20, dtype=object)
    path = saved(tmp_path, inputs=INPUTS, labels=objects)
    with pytest.raises(InputError, match=r"my.npz holds an object array: store plain numbers"):
        load(path)
    with pytest.raises(InputError, match="`labels` is an object array"):
        from_arrays(INPUTS, objects, edges=1, clients_per_edge=1, seed=0)


def test_an_array_of_another_name_is_not_even_read(tmp_path):
    path = saved(tmp_path, inputs=INPUTS, labels=LABELS, about=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="holds an array `about`"):
        load(path)


def test_a_missing_file_and_one_that_is_no_zip(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        load(str(tmp_path / "none.npz"))
    np.save(tmp_path / "array.npy", INPUTS)
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(InputError, match=r"array.npz is not a readable .npz file"):
        load(str(tmp_path / "array.npz"))


def test_a_damaged_member_is_found(tmp_path):
    path = Path(saved(tmp_path, inputs=INPUTS, labels=LABELS))
    content = bytearray(path.read_bytes())
    content[content.index(INPUTS[5].tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="corrupt or truncated"):
        load(str(path))


def whole_file(compressed: bool) -> bytes:
    memory = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(memory, inputs=INPUTS, labels=LABELS, client=np.arange(20) % 4, test=np.arange(20) >= 12)
    return memory.getvalue()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_an_input_error_or_harmless(tmp_path, data):
    content = bytearray(whole_file(data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "my.npz").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        federation = load(str(tmp_path / "my.npz"))
    except InputError:
        return
    # The damage hit nothing that is read (a time stamp, an optional array's name): what was read is right.
    np.testing.assert_array_equal(federation.inputs, INPUTS)
    np.testing.assert_array_equal(federation.labels, LABELS)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.binary(max_size=80), kept=st.integers(0, 120))
def test_any_array_header_is_an_input_error(tmp_path, header, kept):
    """A zip without a fault whose members are not: the header of an array is arbitrary bytes."""
    array = io.BytesIO()
    np.save(array, INPUTS)
    start = array.getvalue()[:kept]
    with zipfile.ZipFile(tmp_path / "my.npz", "w") as archive:
        archive.writestr("inputs.npy", start + header)
        archive.writestr("labels.npy", start + header)
    with pytest.raises(InputError):
        load(str(tmp_path / "my.npz"))


def test_the_given_clients_and_test_rows_are_taken_as_they_are(tmp_path):
    client, test = np.arange(20) % 3, np.arange(20) >= 12
    federation = load(saved(tmp_path, inputs=INPUTS, labels=LABELS, client=client, test=test))
    assert federation.seats.tolist() == [[0, 1], [2, -1]]
    assert federation.notes == ("1 of 4 seats are empty: my.npz has 3 clients.",)
    for number in range(3):
        np.testing.assert_array_equal(federation.train[number], np.flatnonzero((client == number) & ~test))
        np.testing.assert_array_equal(federation.test[number], np.flatnonzero((client == number) & test))
        assert len(federation.validation[number]) == 0


def test_without_a_client_column_rows_are_dealt_at_random(tmp_path):
    path = saved(tmp_path, inputs=INPUTS, labels=LABELS)
    federation, resolved = federate(DataOptions(path), edges=2, clients_per_edge=2, seed=0)
    assert resolved.partition == "iid"
    assert [len(rows) for rows in federation.train] == [4] * 4
    assert [len(rows) for rows in federation.test] == [1] * 4


def test_an_asked_for_partition_overrules_the_client_column(tmp_path):
    path = saved(tmp_path, inputs=INPUTS, labels=LABELS, client=np.zeros(20, int))
    assert len(load(path, partition="iid").train) == 4
    with pytest.raises(InputError, match="needs an array `client`"):
        load(saved(tmp_path, inputs=INPUTS, labels=LABELS), partition="given")


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        ("f2", "f4"),
        ("f4", "f4"),
        (">f4", "f4"),
        ("f8", "f8"),
        (">f8", "f8"),
        ("i4", "f8"),
        ("?", "f8"),
        ("u1", "u1"),
    ],
)
def test_inputs_of_any_number_type_are_held_as_floats_or_images(tmp_path, given_dtype, kept):
    inputs = INPUTS.astype(given_dtype)
    federation = load(saved(tmp_path, inputs=inputs, labels=LABELS.astype(">i2")))
    assert federation.inputs.dtype == np.dtype(kept)
    assert federation.inputs.dtype.isnative
    np.testing.assert_array_equal(federation.inputs, inputs)


def test_the_path_is_resolved_so_that_a_run_can_be_resumed_from_elsewhere(tmp_path, monkeypatch):
    path = saved(tmp_path, inputs=INPUTS, labels=LABELS)
    monkeypatch.chdir(tmp_path)
    assert federate(DataOptions("my.npz"), edges=1, clients_per_edge=2, seed=0)[1].source == path


def test_validation_is_asked_for_and_leaves_every_label_in_training(tmp_path):
    labels = np.array([0] * 12 + [1] * 7 + [2])
    path = saved(
        tmp_path, inputs=INPUTS, labels=labels, client=np.zeros(20, int), test=np.arange(20) % 4 == 0
    )
    federation = load(path, edges=1, clients_per_edge=1, validation_per_label=4)
    rows = np.concatenate([federation.train[0], federation.validation[0]])
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(np.arange(20) % 4))
    assert np.bincount(labels[federation.validation[0]], minlength=3).tolist() == [4, 2, 0]


def test_clients_may_have_any_numbers_or_names(tmp_path):
    numbers = load(saved(tmp_path, inputs=INPUTS, labels=LABELS, client=np.array([-7, 10**15, 3])[CLIENT]))
    assert numbers.names.clients == ("-7", "3", "1000000000000000")
    plain = load(saved(tmp_path, inputs=INPUTS, labels=LABELS, client=CLIENT))
    assert plain.names.clients == (), "numbers from 0 are no names"
    texts = load(saved(tmp_path, inputs=INPUTS, labels=LABELS, client=np.array(["c", "a", "b"])[CLIENT]))
    assert texts.names.clients == ("a", "b", "c")
    for client, number in enumerate([1, 2, 0]):
        held = np.concatenate([texts.train[client], texts.test[client]])
        assert (CLIENT[held] == number).all()
    objects = np.array(["c", "a", "b"], object)[CLIENT]  # as pandas has text
    again, _ = from_arrays(INPUTS, LABELS, client=objects, edges=2, clients_per_edge=2, seed=0)
    assert again.names.clients == ("a", "b", "c")
    other = load(saved(tmp_path, inputs=INPUTS, labels=LABELS, client=objects.astype(str)), partition="iid")
    assert other.names.clients == (), "rows that are divided again have other holders"


def test_names_cannot_command_a_terminal(tmp_path):
    names = np.array(["\x1b[2J", "../../x", "[bold]z"])[CLIENT]
    federation = load(saved(tmp_path, inputs=INPUTS, labels=LABELS, client=names))
    assert federation.names.clients == ("\\x1b[2J", "../../x", "[bold]z")


def test_edges_follow_from_an_array(tmp_path):
    edge = np.array([20, 10, 20])[CLIENT]
    path = saved(tmp_path, inputs=INPUTS, labels=LABELS, client=CLIENT, edge=edge)
    federation, experiment = federation_of(Experiment(data=DataOptions(path)))
    assert (experiment.edges, experiment.clients_per_edge) == (2, (1, 2))
    assert federation.seats.tolist() == [[1, -1], [0, 2]], "clients keep their numbers"
    assert federation.names.edges == ("10", "20")
    assert federation.names.clients == ()
    assert federation.notes == ("`edge` of my.npz gives edges = 2 and clients_per_edge = [1, 2].",)
    assert federation_of(experiment)[1] == experiment
    arrays = {"inputs": INPUTS, "labels": LABELS, "client": CLIENT, "edge": edge}
    assert federation_of(Experiment(), data=arrays)[1].clients_per_edge == (1, 2)
    with pytest.raises(InputError, match=r"edges = 3, but `edge` of my.npz gives 2: leave edges out"):
        federation_of(Experiment(data=DataOptions(path), edges=3))
    with pytest.raises(InputError, match=r"clients_per_edge = 2, but `edge` of my.npz gives \[1, 2\]: leave"):
        federation_of(Experiment(data=DataOptions(path), edges=2, clients_per_edge=2))
    with pytest.raises(InputError, match=r"`edge` of my.npz says which edge a client is under, and so does"):
        load(path, edges=4, clients_per_edge=5, edge_order="random")
    assert load(path, partition="iid").seats.tolist() == [[0, 1], [2, 3]], "as was asked for"

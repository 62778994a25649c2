from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, federate

SIZES = ((6, 2), (9, 3), (3, 1))  # training and test rows of each client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As PFLlib's scripts write it: floats of images and integer labels, in a dictionary inside a pickle."""
    draw = np.random.default_rng(0)
    root = tmp_path / "Toy"
    for part, rows in (("train", 0), ("test", 1)):
        (root / part).mkdir(parents=True)
        for client, sizes in enumerate(SIZES):
            labels = np.arange(sizes[rows]) % 2 + client % 2
            write(root / part / f"{client}.npz", x=draw.normal(size=(sizes[rows], 1, 4, 4)), y=labels)
    (root / "config.json").write_text('{"num_clients": 3}')
    return root


def write(path: Path, **arrays: Any) -> None:
    arrays = {name: each.astype(np.float32) if name == "x" else each for name, each in arrays.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, data=arrays)  # type: ignore[arg-type]  # NumPy pickles what is no array


def test_clients_rows_and_tests_are_those_of_the_folder(folder):
    federation, options = federate(DataOptions(str(folder)), edges=1, clients_per_edge=3, seed=0)
    assert [
        (len(train), len(test)) for train, test in zip(federation.train, federation.test, strict=True)
    ] == [*SIZES]
    assert (options.partition, options.scale, federation.classes) == ("given", "none", 3)
    for client, (train, test) in enumerate(zip(federation.train, federation.test, strict=True)):
        for part, rows in (("train", train), ("test", test)):
            with np.load(folder / part / f"{client}.npz", allow_pickle=True) as file:
                held = file["data"].item()
            np.testing.assert_array_equal(federation.inputs[rows], held["x"])
            np.testing.assert_array_equal(federation.labels[rows], held["y"])


def test_a_folder_can_be_trained_on(folder):
    experiment = sfedhp.Experiment(
        rounds=1,
        edges=1,
        clients_per_edge=3,
        batch_size=2,
        algorithm=sfedhp.FedAvg(local_steps=2),
        data=DataOptions(str(folder)),
        model=sfedhp.ModelOptions(name="mlr"),
    )
    assert len(sfedhp.run(experiment).history) == 1


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def test_nothing_but_arrays_is_unpickled(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (folder / "train" / "1.npz").open("wb") as file:
        np.savez(file, data={"x": Harmful(), "y": np.arange(3)})  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"train/1.npz is not a file of a PFLlib dataset: it must hold `data`"
    ):
        federate(DataOptions(str(folder)), edges=1, clients_per_edge=3, seed=0)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.zeros((3, 2))},
        {"x": np.zeros((3, 2)), "y": np.arange(2)},
        {"x": np.zeros(3), "y": np.arange(3)},
    ],
)
def test_other_content_is_refused(folder, arrays):
    write(folder / "test" / "2.npz", **arrays)
    with pytest.raises(InputError, match=r"test/2.npz is not a file of a PFLlib dataset"):
        federate(DataOptions(str(folder)), edges=1, clients_per_edge=3, seed=0)


def test_an_array_in_place_of_the_dictionary_is_refused(folder):
    content = io.BytesIO()
    np.save(content, np.arange(3))
    with zipfile.ZipFile(folder / "train" / "0.npz", "w") as archive:
        archive.writestr("data.npy", content.getvalue())
    with pytest.raises(InputError, match=r"train/0.npz is not a file of a PFLlib dataset"):
        federate(DataOptions(str(folder)), edges=1, clients_per_edge=3, seed=0)


def test_a_missing_client_is_named(folder):
    (folder / "test" / "1.npz").unlink()
    with pytest.raises(InputError, match=r"There is no file .*test/1.npz: PFLlib numbers its clients"):
        federate(DataOptions(str(folder)), edges=1, clients_per_edge=3, seed=0)


def test_clients_with_other_shapes_are_refused(folder):
    write(folder / "test" / "1.npz", x=np.zeros((3, 1, 5, 5)), y=np.arange(3))
    with pytest.raises(InputError, match=r"Toy: the rows of its clients differ in shape"):
        federate(DataOptions(str(folder)), edges=1, clients_per_edge=3, seed=0)

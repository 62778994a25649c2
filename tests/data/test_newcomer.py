"""Clients that are held out of a federation, and the rows of a newcomer."""

from typing import Any

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Newcomer, federate, hold_out
from sfedhp.data.newcomer import load_newcomer


def federation(**options):
    data = DataOptions(train_per_label=20, test_per_label=20, validation_per_label=0, **options)
    return federate(data, edges=2, clients_per_edge=3, seed=0)[0]


def test_scaling_is_by_those_that_stay():
    full = federation(scale="per_pixel")
    rest, (newcomer,) = hold_out(full, [3])
    assert np.array_equal(newcomer.inputs, rest.scaled(full.train[3], "float32"))
    assert not np.array_equal(newcomer.inputs, full.scaled(full.train[3], "float32"))


@pytest.mark.parametrize("clients", [[6], [-1], list(range(6))])
def test_impossible_clients_cannot_be_held_out(clients):
    with pytest.raises(InputError, match="cannot be held out"):
        hold_out(federation(), clients)


def test_a_newcomers_rows_come_from_a_file_or_from_arrays(tmp_path):
    arrays: dict[str, Any] = {
        "inputs": np.arange(40, dtype=np.uint8).reshape(10, 4),
        "labels": np.arange(10) % 2,
    }
    np.savez(tmp_path / "own.npz", **arrays)
    run: dict[str, Any] = {"edges": 2, "clients_per_edge": 3, "seed": 0, "dtype": "float32"}
    found = load_newcomer(arrays, DataOptions(test_share=0.2), **run)
    assert isinstance(found, Newcomer)
    assert (len(found.labels), len(found.test_labels)) == (8, 2)
    assert found.inputs.dtype == np.float32
    assert found.inputs.max() <= 1
    for path in (tmp_path / "own.npz", str(tmp_path / "own.npz")):
        again = load_newcomer(path, DataOptions(test_share=0.2), **run)
        assert all(np.array_equal(one, two) for one, two in zip(found[:4], again[:4], strict=True))

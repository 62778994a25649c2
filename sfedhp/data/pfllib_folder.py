"""A dataset folder of PFLlib as data: `train/0.npz`, `test/0.npz`, …, a file of each kind for every client.

PFLlib stores its arrays in pickles. Loading a pickle may run any code, and forged states of NumPy's classes
crash the process. So this module replaces these classes by its own, and makes arrays from plain bytes.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemOption
from sfedhp.data.npz import check_size
from sfedhp.data.pool import Pool, pool_of

_PARTS: Final = ("train", "test")


def is_pfllib_folder(root: Path) -> bool:
    """Whether a folder has the first client's files of a PFLlib dataset."""
    return all((root / part / "0.npz").is_file() for part in _PARTS)


def read_pfllib_folder(root: Path, problem: ProblemOption = "auto") -> Pool:
    """The rows of all clients, with PFLlib's own assignment to clients and its own test rows.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    clients = sum(1 for _ in (root / "train").glob("*.npz"))
    inputs: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    holders: list[NDArray[Any]] = []
    tests: list[NDArray[Any]] = []
    for client in range(clients):
        for part in _PARTS:
            rows, targets = _arrays(root / part / f"{client}.npz")
            inputs.append(rows)
            labels.append(targets)
            holders.append(np.full(len(rows), client))
            tests.append(np.full(len(rows), part == "test"))
    if len({each.shape[1:] for each in inputs}) > 1:
        raise InputError(f"{root.name}: the rows of its clients differ in shape: generate the folder again.")
    return pool_of(
        root.name,
        np.concatenate(inputs),
        np.concatenate(labels),
        client=np.concatenate(holders),
        test=np.concatenate(tests),
        problem=problem,
    )


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows and the targets in one file."""
    if not path.is_file():
        raise InputError(f"There is no file {path}: PFLlib numbers its clients 0, 1, 2, … without gaps.")
    # Damaged bytes make zipfile, pickle and NumPy raise a dozen kinds of errors; the user has one problem.
    try:
        with zipfile.ZipFile(path) as archive:
            check_size(path, archive)
            content = archive.read("data.npy")
        found = _unpickled(content)
        rows, targets = found["x"].array(), found["y"].array()
        if rows.ndim < 2 or targets.shape[:1] != rows.shape[:1]:
            raise ValueError("not rows with a target each")
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} is not a file of a PFLlib dataset: it must hold `data`, a dictionary with the arrays x "
            f"and y. Generate it again with PFLlib's script."
        ) from error
    return rows, targets


def _unpickled(content: bytes) -> Any:
    """The object in an array of NumPy's format that holds one object."""
    file = io.BytesIO(content)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
    shape, _, dtype = read_header(file)
    if shape != () or not dtype.hasobject:
        raise ValueError("not one object")
    (found,) = _Unpickler(file).load().data
    return found


class _DType:
    """In place of `numpy.dtype`: the name of a type of numbers, and its byte order."""

    def __init__(self, name: str, *_: Any):
        self.name, self.order = name, "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


class _Array:
    """In place of `numpy.ndarray`: its shape, its type, and its content as bytes or as a list of objects."""

    def __init__(self, *_: Any):
        self.shape: tuple[int, ...] = ()
        self.dtype, self.by_columns, self.data = _DType("f8"), False, b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.by_columns, self.data = state

    def array(self) -> NDArray[Any]:
        """The array of NumPy, of numbers."""
        dtype = np.dtype(f"{self.dtype.order}{self.dtype.name}")
        if dtype.kind not in "biuf" or not isinstance(self.data, bytes):
            raise ValueError("not numbers")
        return np.frombuffer(self.data, dtype).reshape(self.shape, order="F" if self.by_columns else "C")


class _Unpickler(pickle.Unpickler):
    """Loads only the classes above, lists, tuples, dictionaries, text and numbers."""

    _CLASSES: Final = {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
    }

    def find_class(self, module: str, name: str) -> Any:
        """The class for a name in the pickle; KeyError for all but those of arrays."""
        return self._CLASSES[module, name]

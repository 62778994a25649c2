"""A user's own data: an `.npz` with `inputs`, `labels` and optionally `client`, `edge` and `test`."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemOption
from sfedhp.data.pool import Pool, check_inputs, check_names, needed_arrays, pool_of

_LARGE: Final = 2**28  # bytes from which on the size of an archive's content is compared with its own
_MOST_COMPRESSED: Final = 100  # times; arrays of data rarely reach 20


def is_npz(source: str) -> bool:
    """Whether a source is such a file."""
    return source.lower().endswith(".npz")


def read_npz(path: Path, problem: ProblemOption = "auto") -> Pool:
    """The pool in the file, checked; nothing in it is ever unpickled.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    return pool_of(path.name, **_arrays(path, needed_arrays(problem)), problem=problem)


def read_npz_inputs(path: Path) -> NDArray[Any]:
    """The `inputs` of the file alone, which may have no labels.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    return check_inputs(path.name, _arrays(path, needed=("inputs",))["inputs"])


def _arrays(path: Path, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    # Damaged bytes make zipfile and NumPy raise a dozen kinds of errors; all mean that the file is damaged.
    try:
        with zipfile.ZipFile(path) as archive:
            check_size(path, archive)
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} is damaged")
        with np.load(path, allow_pickle=False) as file:
            check_names(path.name, file.files, needed)
            return {name: file[name] for name in file.files}
    except InputError:
        raise
    except Exception as error:
        if "Object arrays" in str(error):
            raise InputError(f"{path.name} holds an object array: store plain numbers.") from error
        raise InputError(f"{path.name} is not a readable .npz file: it is corrupt or truncated.") from error


def check_size(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse a small file that claims to hold very large arrays, before anything is read.

    Raises:
        InputError: it does.
    """
    size, stored = sum(entry.file_size for entry in archive.infolist()), path.stat().st_size
    if size > _LARGE and size > _MOST_COMPRESSED * stored:
        raise InputError(
            f"{path.name} has {stored} bytes and would become {size}: if that is right, write it "
            f"uncompressed with numpy.savez."
        )

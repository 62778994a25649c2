"""New rows for a saved model: read like the training data, checked, and scaled as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.data.image_folder import SUFFIXES, images_of, read_unlabelled
from sfedhp.data.npz import is_npz, read_npz_inputs
from sfedhp.data.pool import check_inputs
from sfedhp.data.schema import Schema
from sfedhp.data.table import is_table, read_columns

Source = Path | str | NDArray[Any]  # a file like the training data, or inputs (rows, *shape)


def prepare(schema: Schema, data: Source, dtype: torch.dtype) -> Tensor:
    """The rows as the model takes them.

    Args:
        schema: of the training data.
        data: a target is not needed, and is not read.
        dtype: of the model.

    Raises:
        InputError: the rows do not fit the model.
    """
    return scaled(schema, *read_rows(schema, data), dtype)


def scaled(schema: Schema, name: str, inputs: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """Rows as they are in the data as the model takes them; `name` is how messages call them.

    Raises:
        InputError: they do not fit the model.
    """
    return torch.from_numpy(schema.prepare(name, inputs, str(dtype).removeprefix("torch.")))


def read_rows(schema: Schema, data: Source) -> tuple[str, NDArray[Any]]:
    """How messages call the rows, and the rows, not scaled; those of a table are encoded.

    Raises:
        InputError: they cannot be read, or are not what the model was trained on.
    """
    if isinstance(data, np.ndarray):
        if schema.encoding is not None:
            raise InputError("The model was trained on a table: give a .csv or .parquet file.")
        return "the data", check_inputs("the data", data)
    path = Path(data)
    if not path.exists():
        raise InputError(f"There is no file {path}: name one with new rows.")
    if schema.encoding is not None:
        if not is_table(path.name):
            raise InputError(f"The model was trained on a table, and {path.name} is not: give a .csv file.")
        return path.name, schema.encoding.apply(read_columns(path))
    if _is_images(path):
        colored = len(schema.shape) == 3 and schema.shape[0] == 3
        return path.name, read_unlabelled(path, schema.image_size, colored=colored)
    if not is_npz(path.name):
        raise InputError(
            f"The model was trained on arrays or images, and {path.name} is neither: give an .npz with "
            f"`inputs`, or images."
        )
    return path.name, read_npz_inputs(path)


def files_of(data: Source) -> tuple[str, ...]:
    """The file of each row, relative to the folder, if the rows are images; else none."""
    path = None if isinstance(data, np.ndarray) else Path(data)
    if path is None or not _is_images(path):
        return ()
    return tuple(str(each.relative_to(path) if path.is_dir() else each.name) for each in images_of(path))


def _is_images(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() in SUFFIXES

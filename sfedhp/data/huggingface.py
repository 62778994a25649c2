"""A Hugging Face `datasets.Dataset` as data: a column of images, or the columns of a table.

The package `datasets` is never imported here: a program that has such a dataset has imported it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemOption
from sfedhp.data.columns import Column, Table, check_names
from sfedhp.data.images import check_pillow, image_array
from sfedhp.data.options import DataOptions
from sfedhp.data.parquet_file import arrow_column
from sfedhp.data.pool import Pool
from sfedhp.data.table import pool_of_table

_TARGETS = ("label", "labels")  # the target where `data.target` is not set
_ROLES = ("target", "client_column", "edge_column", "test_column")
_NAME = "the dataset"


def is_huggingface(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, or several of them by their splits."""
    return type(data).__module__.split(".")[0] == "datasets"


def pool_of_dataset(
    dataset: Any, options: DataOptions, problem: ProblemOption = "auto"
) -> tuple[Pool, DataOptions]:
    """The rows of the dataset, and the options with the target as resolved.

    Args:
        dataset: one split, not a stream.
        options: `target`, `client_column`, `edge_column`, `test_column` and `drop` name columns.
        problem: what is predicted; "auto": as the target says.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    if type(dataset).__name__ != "Dataset":
        raise InputError(
            f"A {type(dataset).__name__} of Hugging Face cannot be used: give one split, for example "
            f"dataset['train'], that is not streamed."
        )
    check_names(_NAME, dataset.column_names)
    if not len(dataset):
        raise InputError(f"{_NAME} has no rows: add some.")
    if options.target is None and problem != "reconstruction":
        found = [name for name in _TARGETS if name in dataset.column_names]
        if not found:
            raise InputError(
                f"{_NAME} needs data.target, the column to predict; its columns are "
                f"{', '.join(dataset.column_names)}."
            )
        options = replace(options, target=found[0])
    images = [name for name, kind in dataset.features.items() if type(kind).__name__ == "Image"]
    if not images:
        return pool_of_table(_table(dataset, dataset.column_names), options, problem), options
    if len(images) > 1:
        raise InputError(f"{_NAME} has several columns of images ({', '.join(images)}): keep one of them.")
    return _pool_of_images(dataset, images[0], options, problem), options


def _pool_of_images(dataset: Any, image: str, options: DataOptions, problem: ProblemOption) -> Pool:
    check_pillow("A dataset of images")
    if isinstance(options.target, tuple):
        raise InputError(f"data.target names several columns, and {_NAME} holds images: name one column.")
    roles = {key: getattr(options, key) for key in _ROLES if getattr(options, key) is not None}
    for key, name in roles.items():
        if name not in dataset.column_names:
            columns = ", ".join(dataset.column_names)
            raise InputError(f"data.{key} = {name!r} is not a column of {_NAME}: its columns are {columns}.")
    named = _table(dataset, list(dict.fromkeys(roles.values())))
    # A column of zeros replaces the images, so that all other columns are read as those of a table.
    zeros = Column(image, "number", ["0"] * len(dataset), np.zeros(len(dataset)))
    table = replace(named, columns=(*named.columns, zeros))
    pool = pool_of_table(table, replace(options, drop=None), problem)
    pixels = image_array(
        len(dataset),
        lambda row: dataset[row][image],
        lambda row: f"row {row + 1} of {_NAME}",
        options.image_size,
    )
    return replace(pool, inputs=pixels, encoding=None, names=pool.names._replace(features=()))


def _table(dataset: Any, names: list[str]) -> Table:
    """These columns as a table; a `ClassLabel` is the name of its class."""
    import pyarrow

    rows = dataset.select_columns(names).with_format("arrow")[:]
    columns = []
    for name in names:
        values = rows.column(name)
        labels = getattr(dataset.features[name], "names", None)
        if labels is not None:
            texts = [None if code is None or code < 0 else labels[code] for code in values.to_pylist()]
            values = pyarrow.chunked_array([pyarrow.array(texts, pyarrow.string())])
        columns.append(arrow_column(name, values, pyarrow.types))
    return Table(_NAME, tuple(columns), "row", range(1, len(dataset) + 1))

"""Reading a `.parquet` file with pyarrow (the extra `sfedhp[parquet]`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sfedhp.core.errors import InputError
from sfedhp.data.columns import Column, Table, check_names, plain_text, text_column


def read_parquet(path: Path) -> Table:
    """The table in the file.

    Raises:
        InputError: pyarrow is not installed, or one sentence on the first thing that is wrong.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("A .parquet file needs pyarrow: pip install 'sfedhp[parquet]'.") from None
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            # pandas stores an index that is not 0, 1, 2, … as a column of this name.
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            check_names(path.name, names)
            content = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path.name} is not a readable .parquet file: write it again.") from error
    if not content.num_rows:
        raise InputError(f"{path.name} has no rows: add some.")
    columns = tuple(arrow_column(name, content.column(name), pyarrow.types) for name in names)
    return Table(path.name, columns, "row", range(1, content.num_rows + 1))


def arrow_column(name: str, values: Any, types: Any) -> Column:
    """A column of an Arrow table; `types` is the module `pyarrow.types`."""
    kind = values.type.value_type if types.is_dictionary(values.type) else values.type
    texts = [None if value is None or value != value else plain_text(value) for value in values.to_pylist()]
    if types.is_boolean(kind):
        return text_column(name, ["" if text is None else text for text in texts])
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        numbers = np.array([np.nan if value is None else float(value) for value in values.to_pylist()])
        return Column(name, "number", texts, numbers)
    if types.is_temporal(kind):
        return Column(name, "time", texts, np.empty(0))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        # Numbers that were stored as text stay text; dates that were stored as text are read as dates.
        read = text_column(name, ["" if text is None else text.strip() for text in texts])
        return read if read.kind == "time" else Column(name, "text", read.texts, np.empty(0))
    if types.is_null(kind):
        return Column(name, "number", texts, np.full(len(texts), np.nan))
    return Column(name, "other", texts, np.empty(0))

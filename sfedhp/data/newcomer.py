"""The rows of a client that joins after training: its own file or arrays, or a client that was held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.federation import Federation
from sfedhp.data.loading import ARRAYS, federate
from sfedhp.data.npz import read_npz
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Pool, check_names, pool_of
from sfedhp.data.scaling import Scaling, scaling_of
from sfedhp.data.schema import Schema
from sfedhp.data.split import split_owned
from sfedhp.data.table import is_table, read_table_like


class Newcomer(NamedTuple):
    """A new client's own rows, scaled as the run's."""

    inputs: NDArray[Any]  # (rows, *shape)
    labels: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_labels: NDArray[np.int64]


def load_newcomer(
    data: Mapping[str, Any] | Path | str,
    options: DataOptions,
    *,
    edges: int,
    clients_per_edge: int | Sequence[int],
    seed: int,
    dtype: str,
    schema: Schema | None = None,
) -> Newcomer:
    """A newcomer's rows from a file or a mapping of arrays: `inputs`, `labels`, optionally `test`.

    If the run's data is a table, the file is a table too, with the columns of the run's. Without `test`,
    `options.test_share` of the rows are kept for testing. The rows are scaled as the run's.

    Args:
        data: the file, or the arrays.
        options: of the run's data.
        edges: of the run.
        clients_per_edge: of the run.
        seed: of the run.
        dtype: of the newcomer's inputs.
        schema: of the run's data. None in the folders of earlier versions: then the run's data is read again
            where its scaling needs it.

    Raises:
        InputError: the rows are not what they must be, or are those of several clients.
    """
    if schema is None and (is_table(options.source) or _is_standard_pixels(options)):
        schema = _schema_of_run(options, edges, clients_per_edge, seed)
    if schema is not None and schema.problem != "classification":
        raise InputError(
            f"The run is of problem = {schema.problem}, and only models of classes can be adapted to a "
            f"newcomer yet: use the run's global model."
        )
    pool = _read(data, options, schema)
    if pool.client is not None and len(np.unique(pool.client)) > 1:
        raise InputError(
            f"{pool.name} holds the rows of {len(np.unique(pool.client))} clients: give the rows of one."
        )
    owner = np.zeros(len(pool.labels), np.int64)
    split = split_owned(pool, owner, 1, replace(options, validation_per_label=0), np.random.default_rng(seed))
    train, test = split.train[0], split.test[0]
    if schema is not None:
        schema.scaling.check(pool.name, pool.inputs)
        scaling = schema.scaling
    else:
        scaling = scaling_of(options.scale, pool.inputs, train, None)
    return Newcomer(
        _scaled(pool, train, scaling, dtype),
        pool.labels[train],
        _scaled(pool, test, scaling, dtype),
        pool.labels[test],
    )


def hold_out(
    federation: Federation, clients: Sequence[int], dtype: str = "float32"
) -> tuple[Federation, tuple[Newcomer, ...]]:
    """A federation without some of its clients, and those clients as newcomers.

    The others keep their order and seats. Inputs are scaled by the training rows of the others alone.

    Args:
        federation: who holds what.
        clients: the ids of those to hold out.
        dtype: of the newcomers' inputs.

    Raises:
        InputError: there is no such client, or none would be left.
    """
    last = len(federation.train) - 1
    unknown = sorted(client for client in clients if not 0 <= client <= last)
    if unknown or len(set(clients)) > last:
        what = f"there is no client {unknown[0]}" if unknown else "none would be left"
        raise InputError(f"These clients cannot be held out: {what}; the clients are 0 to {last}.")
    rest = federation.without(clients)
    return rest, tuple(
        Newcomer(
            rest.scaled(federation.train[client], dtype),
            federation.labels[federation.train[client]],
            rest.scaled(federation.test[client], dtype),
            federation.labels[federation.test[client]],
        )
        for client in clients
    )


def _read(data: Mapping[str, Any] | Path | str, options: DataOptions, schema: Schema | None) -> Pool:
    """The newcomer's rows, as the run's data has them."""
    if isinstance(data, Mapping):
        if schema is not None and schema.encoding is not None:
            raise InputError(
                "The run's data is a table: give the newcomer's rows as a .csv or .parquet file."
            )
        check_names("the newcomer's data", data)
        return pool_of("the newcomer's data", **data)
    path = Path(data).expanduser()
    table = is_table(path.name)
    if schema is None or schema.encoding is None:
        if table:
            raise InputError(f"{path.name} is a table, and the run's data is not: give an .npz.")
        return read_npz(path)
    if not table:
        raise InputError(f"The run's data is a table, and {path.name} is not: give a .csv or .parquet file.")
    return read_table_like(path, options, schema.table)


def _is_standard_pixels(options: DataOptions) -> bool:
    """Whether an earlier version, which standardized nothing else, took statistics of all images."""
    return options.scale in ("standard", "per_pixel")


def _schema_of_run(
    options: DataOptions, edges: int, clients_per_edge: int | Sequence[int], seed: int
) -> Schema:
    """The schema of a run, from its data."""
    if options.source == ARRAYS:
        raise InputError(
            f"The run's data came from Python, so data.scale = {options.scale!r} cannot be repeated: resume "
            f"the run once with its data, which writes its scaling into the folder."
        )
    federation, _ = federate(options, edges=edges, clients_per_edge=clients_per_edge, seed=seed)
    return Schema.of(federation, options)


def _scaled(pool: Pool, rows: NDArray[np.int64], scaling: Scaling, dtype: str) -> NDArray[Any]:
    return scaling.apply(pool.inputs[rows], np.dtype(dtype))

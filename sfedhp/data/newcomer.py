"""The rows of a client that joins after training: its own file or arrays, or a client that was held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.core.types import ProblemName
from sfedhp.data.federation import Federation
from sfedhp.data.loading import ARRAYS, federate
from sfedhp.data.npz import read_npz
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Pool, Rows, check_names, needed_arrays, pool_of
from sfedhp.data.scaling import Scaling
from sfedhp.data.schema import Schema
from sfedhp.data.split import split_owned
from sfedhp.data.table import is_table, read_table_like


class Newcomer(NamedTuple):
    """A new client's own rows, scaled as the run's."""

    inputs: NDArray[Any]  # (rows, *shape)
    labels: NDArray[Any]  # (rows,) for classes, else (rows, outputs); numbers standardized as the run's
    test_inputs: NDArray[Any]
    test_labels: NDArray[Any]
    problem: ProblemName = "classification"
    target_scaling: Scaling | None = None  # of numbers that are predicted


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

    The labels are what the run predicts; a reconstruction needs none.
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
    pool = _read(data, options, schema)
    if pool.client is not None and len(np.unique(pool.client)) > 1:
        raise InputError(
            f"{pool.name} holds the rows of {len(np.unique(pool.client))} clients: give the rows of one."
        )
    owner = np.zeros(len(pool.labels), np.int64)
    split = split_owned(pool, owner, 1, replace(options, validation_per_label=0), np.random.default_rng(seed))
    if schema is not None:
        schema.scaling.check(pool.name, pool.inputs)
        if pool.labels.ndim == 2 and pool.labels.shape[1] != schema.targets:
            raise InputError(
                f"{pool.name} has {counted(pool.labels.shape[1], 'target')} in each row, but the run "
                f"predicts {schema.targets}: give rows with the run's targets."
            )
    alone = Federation(
        inputs=pool.inputs,
        labels=pool.labels,
        classes=pool.classes,
        **split._asdict(),
        seats=np.zeros((1, 1), np.int64),
        scale=options.scale,
        given_scaling=None if schema is None else schema.scaling,
        problem=pool.problem,
        given_target_scaling=None if schema is None else schema.target_scaling,
    )
    return _newcomer(alone, split.train[0], split.test[0], dtype)


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
        _newcomer(rest, federation.train[client], federation.test[client], dtype) for client in clients
    )


def _newcomer(federation: Federation, train: Rows, test: Rows, dtype: str) -> Newcomer:
    """The client with these rows of a federation, in which it need not take part."""
    return Newcomer(
        federation.scaled(train, dtype),
        federation.targets(train, dtype),
        federation.scaled(test, dtype),
        federation.targets(test, dtype),
        federation.problem,
        federation.target_scaling,
    )


def _read(data: Mapping[str, Any] | Path | str, options: DataOptions, schema: Schema | None) -> Pool:
    """The newcomer's rows, as the run's data has them."""
    problem = "classification" if schema is None else schema.problem
    if isinstance(data, Mapping):
        if schema is not None and schema.encoding is not None:
            raise InputError(
                "The run's data is a table: give the newcomer's rows as a .csv or .parquet file."
            )
        check_names("the newcomer's data", data, needed_arrays(problem))
        return pool_of("the newcomer's data", **data, problem=problem)
    path = Path(data).expanduser()
    table = is_table(path.name)
    if schema is None or schema.encoding is None:
        if table:
            raise InputError(f"{path.name} is a table, and the run's data is not: give an .npz.")
        return read_npz(path, problem)
    if not table:
        raise InputError(f"The run's data is a table, and {path.name} is not: give a .csv or .parquet file.")
    return read_table_like(path, options, schema.table)


def _is_standard_pixels(options: DataOptions) -> bool:
    """Whether an earlier version standardized these inputs (images only), by statistics of all images."""
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

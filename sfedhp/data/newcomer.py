"""The rows of a client that joins after training: its own file or arrays, or a client that was held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.data.federation import ARRAYS, Federation, federate
from sfedhp.data.npz import read_npz
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Pool, check_names, pool_of
from sfedhp.data.scaling import Scaling, scaling_of
from sfedhp.data.split import split_owned
from sfedhp.data.table import is_table


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
) -> Newcomer:
    """A newcomer's rows from an npz or a mapping of arrays: `inputs`, `labels`, optionally `test`.

    Without `test`, `options.test_share` of the rows are kept for testing. Images of uint8 are scaled as the
    run's: for `standard` and `per_pixel` the run's data is read again for its statistics.

    Args:
        data: the file, or the arrays.
        options: of the run's data.
        edges: of the run.
        clients_per_edge: of the run.
        seed: of the run.
        dtype: of the newcomer's inputs.

    Raises:
        InputError: the arrays are not what they must be, or hold the rows of several clients.
    """
    if is_table(options.source):
        raise InputError(
            f"The run's data is a table ({Path(options.source).name}), and a newcomer's rows cannot be read "
            f"like it yet: from Python, take the newcomer out of the table with sfedhp.data.hold_out."
        )
    if isinstance(data, Mapping):
        check_names("the newcomer's data", data)
        pool = pool_of("the newcomer's data", **data)
    else:
        pool = read_npz(Path(data).expanduser())
    if pool.client is not None and len(np.unique(pool.client)) > 1:
        raise InputError(
            f"{pool.name} holds the rows of {len(np.unique(pool.client))} clients: give the rows of one."
        )
    owner = np.zeros(len(pool.labels), np.int64)
    split = split_owned(pool, owner, 1, replace(options, validation_per_label=0), np.random.default_rng(seed))
    train, test = split.train[0], split.test[0]
    if pool.inputs.dtype == np.uint8 and options.scale in ("standard", "per_pixel"):
        scaling = _scaling_of_run(options, edges, clients_per_edge, seed)
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


def _scaling_of_run(
    options: DataOptions, edges: int, clients_per_edge: int | Sequence[int], seed: int
) -> Scaling:
    """How the run scaled its images: with the statistics of its training images."""
    if options.source == ARRAYS:
        raise InputError(
            f"The run's data came from Python, so data.scale = {options.scale!r} cannot be repeated: scale "
            f"the newcomer's images yourself and give them as floats."
        )
    federation, _ = federate(options, edges=edges, clients_per_edge=clients_per_edge, seed=seed)
    return federation.scaling


def _scaled(pool: Pool, rows: NDArray[np.int64], scaling: Scaling, dtype: str) -> NDArray[Any]:
    return scaling.apply(pool.inputs[rows], np.dtype(dtype))

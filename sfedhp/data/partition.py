"""The partitioners by name: which client holds which rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.data.nested_split import nested_dirichlet
from sfedhp.data.options import DataOptions, Partition
from sfedhp.data.paper_split import paper, paper_as_written
from sfedhp.data.pfllib_split import pfllib, pfllib_dirichlet
from sfedhp.data.pool import Pool, Rows
from sfedhp.data.split import Split, split_owned, without_label_counts

_STREAM = 0x9A7
_LABEL_COUNTS = ("labels_per_client", "train_per_label", "test_per_label")
Owner = NDArray[np.int64]  # (rows,): the client that holds the row
Partitioner = Callable[[Pool, DataOptions, int, np.random.Generator], tuple[Split, DataOptions]]


def partition(
    pool: Pool, options: DataOptions, *, sizes: Sequence[int], seed: int
) -> tuple[Split, DataOptions]:
    """The rows of every client; also the options, with those that were not set resolved.

    Args:
        pool: all rows.
        options: who holds what.
        sizes: clients of each edge.
        seed: decides every draw.

    Raises:
        InputError: the options do not fit the data.
    """
    options = dataclasses.replace(options, partition=resolved_partition(pool, options))
    draw = np.random.default_rng([seed, _STREAM])
    if options.partition == "nested-dirichlet":
        return nested_dirichlet(pool, options, sizes, draw)
    return PARTITIONS[options.partition](pool, options, sum(sizes), draw)


def resolved_partition(pool: Pool, options: DataOptions) -> Partition:
    """The partition, where `auto` is what fits the source."""
    if options.partition != "auto":
        return options.partition
    own: Partition = "iid" if pool.client is None else "given"
    return own if pool.counts is None else "paper"


def _dirichlet(
    pool: Pool, options: DataOptions, clients: int, draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Divides each label's rows in proportions drawn from Dirichlet(α)."""
    shares = draw.dirichlet(np.full(clients, options.concentration), size=pool.strata.groups)
    ends = np.cumsum(shares, axis=1)[:, :-1]
    owner, moved = np.empty(len(pool.inputs), np.int64), 0
    for rows, least in _parts(pool, clients):
        for label in range(pool.strata.groups):
            of_label = draw.permutation(rows[pool.strata.group[rows] == label])
            middles = (np.arange(len(of_label)) + 0.5) / max(len(of_label), 1)
            owner[of_label] = np.searchsorted(ends[label], middles, side="right")
        moved += _fill_up(owner, pool.strata.group, rows, clients, least)
    split, options = _by_owner(pool, owner, clients, options, draw)
    if moved:
        note = f"dirichlet: {moved} rows were moved from the largest clients to those with too few."
        split = split._replace(notes=(note, *split.notes))
    return split, options


def _fill_up(owner: Owner, labels: NDArray[np.int64], rows: Rows, clients: int, least: int) -> int:
    """Move rows of the largest client's commonest label to the smallest client until all have `least`.

    Returns:
        How many rows were moved.
    """
    held = np.bincount(owner[rows], minlength=clients)
    moved = 0
    while held.min() < least:
        smallest, largest = held.argmin(), held.argmax()
        spare = rows[owner[rows] == largest]
        row = spare[labels[spare] == np.bincount(labels[spare]).argmax()][0]
        owner[row] = smallest
        held[smallest] += 1
        held[largest] -= 1
        moved += 1
    return moved


def _shards(
    pool: Pool, options: DataOptions, clients: int, draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Cuts rows sorted by label into equal shards, and gives every client equally many at random."""
    shards = clients * options.shards_per_client
    holder = draw.permutation(shards) // options.shards_per_client
    owner = np.empty(len(pool.inputs), np.int64)
    for rows, _ in _parts(pool, clients):
        if len(rows) < shards:
            raise InputError(
                f"{pool.name}: {len(rows)} rows do not make {shards} shards: lower data.shards_per_client."
            )
        mixed = draw.permutation(rows)
        by_label = mixed[np.argsort(pool.strata.group[mixed], kind="stable")]
        owner[by_label] = holder[np.arange(len(rows)) * shards // len(rows)]
    return _by_owner(pool, owner, clients, options, draw)


def _iid(
    pool: Pool, options: DataOptions, clients: int, draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Deals rows at random, as equally as whole rows allow."""
    owner = np.empty(len(pool.inputs), np.int64)
    for rows, _ in _parts(pool, clients):
        owner[draw.permutation(rows)] = np.arange(len(rows)) % clients
    return _by_owner(pool, owner, clients, options, draw)


def _given(
    pool: Pool, options: DataOptions, clients: int, draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Takes the clients that the source names; there may be fewer than seats."""
    if pool.client is None:
        raise InputError(f"data.partition = 'given' needs an array `client`, and {pool.name} has none.")
    named = int(pool.client.max()) + 1
    if named > clients:
        raise InputError(
            f"{pool.name} has {named} clients, and edges and clients_per_edge give {clients} seats: set them "
            f"so that there are at least {named}."
        )
    return _by_owner(pool, pool.client, named, options, draw)


PARTITIONS: dict[str, Partitioner] = {
    "paper": paper,
    "paper-as-written": paper_as_written,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "iid": _iid,
    "given": _given,
    "pfllib": pfllib,
    "pfllib-dirichlet": pfllib_dirichlet,
}


def _parts(pool: Pool, clients: int) -> Iterator[tuple[Rows, int]]:
    """The groups of rows that are divided among the clients, and how many of a group a client needs.

    Rows that the source marks for testing are a group of their own, divided in the same proportions.
    """
    everything = np.arange(len(pool.inputs))
    parts = [("row", everything, 2)]
    if pool.test is not None:
        parts = [("training row", everything[~pool.test], 1), ("test row", everything[pool.test], 1)]
    for what, rows, least in parts:
        if not len(rows):
            raise InputError(
                f"{pool.name} has no {what}s: mark some rows for testing, and leave some to train on."
            )
        if len(rows) < clients * least:
            are = "is" if len(rows) == 1 else "are"
            raise InputError(
                f"{pool.name}: {counted(len(rows), what)} {are} too few for {counted(clients, 'client')}: "
                f"use fewer clients."
            )
        yield rows, least


def _by_owner(
    pool: Pool, owner: Owner, clients: int, options: DataOptions, draw: np.random.Generator
) -> tuple[Split, DataOptions]:
    """Split what each client holds; counts per label have no effect here, which a note says."""
    ignored = [name for name in _LABEL_COUNTS if getattr(options, name) is not None]
    options = without_label_counts(options)
    split = split_owned(pool, owner, clients, options, draw)
    notes = tuple(
        f"data.{name} has no effect with the partition {options.partition}: ignored." for name in ignored
    )
    return split._replace(notes=notes), options

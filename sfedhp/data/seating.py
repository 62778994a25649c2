"""Assigns clients to edges: by id, at random, by similar labels, or as the data says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.edge_sizes import (
    DEFAULT_CLIENTS_PER_EDGE,
    DEFAULT_EDGES,
    as_option,
    edge_sizes,
    shown,
)
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.data.options import DataOptions
from sfedhp.data.pool import Pool

_STREAM = 0x5EA


def sizes_of_source(
    pool: Pool, options: DataOptions, edges: int, clients_per_edge: int | Sequence[int]
) -> tuple[int, ...]:
    """The clients of each edge that the source names; () where it names no edges.

    Raises:
        InputError: other numbers, which are not the defaults, or another order were asked for.
    """
    if pool.edge_of is None:
        return ()
    if options.edge_order != "consecutive":
        raise InputError(
            f"{pool.edge_source} says which edge a client is under, and so does data.edge_order = "
            f"{options.edge_order!r}: leave one out."
        )
    sizes = tuple(np.bincount(pool.edge_of).tolist())
    given = edge_sizes(edges, clients_per_edge)
    for name, typed, asked, default, found in (
        ("edges", edges, edges, DEFAULT_EDGES, len(sizes)),
        (
            *("clients_per_edge", clients_per_edge),
            *(as_option(given), DEFAULT_CLIENTS_PER_EDGE, as_option(sizes)),
        ),
    ):
        if asked not in (default, found):
            raise InputError(
                f"{name} = {shown(typed)}, but {pool.edge_source} gives {shown(found)}: leave {name} out."
            )
    return sizes


def seat(holdings: NDArray[np.int64], order: str, *, sizes: Sequence[int], seed: int) -> NDArray[np.int64]:
    """The client id on each seat, (edges, most clients of an edge); -1 for an empty seat.

    An edge with fewer clients than another has its empty seats at the end. The last seats of all are empty
    where there are fewer clients than seats.

    Args:
        holdings: each client's training rows per label, (clients, classes).
        order: the option `data.edge_order`.
        sizes: the clients of each edge.
        seed: of the order `random`.

    Raises:
        InputError: an edge would have no client at all.
    """
    clients, ends = len(holdings), np.cumsum(sizes)
    if len(sizes) > 1 and clients <= ends[-2]:
        filled = int(np.searchsorted(ends, clients)) + 1
        each = as_option(sizes)
        if isinstance(each, int):
            raise InputError(
                f"{counted(clients, 'client')} at {each} per edge {'fills' if clients == 1 else 'fill'} only "
                f"{filled} of {len(sizes)} edges: "
                f"set edges={filled}, or a smaller clients_per_edge."
            )
        raise InputError(
            f"clients_per_edge = {shown(each)} has seats for {ends[-1]} clients, and {clients} clients fill "
            f"only {filled} of {len(sizes)} edges: give a list whose sum is {clients}."
        )
    ids = np.arange(clients)
    if order == "random":
        ids = np.random.default_rng([seed, _STREAM]).permutation(clients)
    elif order == "labels":
        ids = _alike_together(holdings, ends)
    seats = np.full((len(sizes), max(sizes)), -1)
    real = np.arange(max(sizes)) < np.array(sizes)[:, None]
    places = np.flatnonzero(real)[:clients]
    seats.flat[places] = ids
    return seats


def seats_by_edge(edge_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Like `seat`, if the edge of each client is known, (clients,): clients sit in the order of their ids."""
    sizes = np.bincount(edge_of)
    seats = np.full((len(sizes), sizes.max()), -1)
    for edge in range(len(sizes)):
        seats[edge, : sizes[edge]] = np.flatnonzero(edge_of == edge)
    return seats


def _alike_together(holdings: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Client ids in an order in which the labels of each group are as alike as a greedy choice makes them.

    `ends` are the places after the last of each group.
    """
    shares = holdings / holdings.sum(1, keepdims=True)
    first = [0, *ends[:-1].tolist()]  # of each group
    left = np.ones(len(shares), np.bool_)
    order = [0]
    left[0] = False
    while left.any():
        # Next comes the client nearest to the mean of the group so far. A new group starts with the client
        # nearest to the old group: the order follows the labels, and not all outliers end in the last edge.
        place = len(order)
        begin = max(start for start in first if start < place)
        center = shares[order[begin:]].mean(0)
        distance = np.abs(shares - center).sum(1).round(9)  # ties go to the lowest id, on every machine
        order.append(int(np.where(left, distance, np.inf).argmin()))
        left[order[-1]] = False
    return np.array(order)


def clients_to_hold_out(seats: NDArray[np.int64], count: int) -> list[int]:
    """The clients that join after training: the last ones of each edge.

    Args:
        seats: the client on each seat of each edge, -1 for an empty one.
        count: how many of each edge.

    Raises:
        InputError: an edge would have no client left.
    """
    found: list[int] = []
    for edge, row in enumerate(seats):
        members = row[row >= 0].tolist()
        if count >= len(members):
            raise InputError(
                f"data.held_out = {count} leaves no client under edge {edge}, which has {len(members)} in "
                f"all: hold out fewer."
            )
        found += members[len(members) - count :]
    return found

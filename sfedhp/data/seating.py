"""Which client belongs to which edge."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError

_STREAM = 0x5EA


def seat(
    holdings: NDArray[np.int64], order: str, *, edges: int, clients_per_edge: int, seed: int
) -> NDArray[np.int64]:
    """The client id on each seat, (edges, clients_per_edge); the last are -1 where there are fewer clients.

    `holdings` counts each client's training rows per label, (clients, classes).

    Raises:
        InputError: an edge would have no client at all.
    """
    clients = len(holdings)
    if clients <= (edges - 1) * clients_per_edge:
        filled = math.ceil(clients / clients_per_edge)
        raise InputError(
            f"{clients} clients at {clients_per_edge} per edge fill only {filled} of {edges} edges: "
            f"set edges={filled}, or a smaller clients_per_edge."
        )
    ids = np.arange(clients)
    if order == "random":
        ids = np.random.default_rng([seed, _STREAM]).permutation(clients)
    elif order == "labels":
        ids = _alike_together(holdings, clients_per_edge)
    seats = np.full(edges * clients_per_edge, -1)
    seats[:clients] = ids
    return seats.reshape(edges, clients_per_edge)


def _alike_together(holdings: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """Client ids in an order in which the labels of each group are as alike as a greedy choice makes them."""
    shares = holdings / holdings.sum(1, keepdims=True)
    left = np.ones(len(shares), np.bool_)
    order = [0]
    left[0] = False
    while left.any():
        # Next comes the client nearest to the mean of the group so far. A new group starts with the client
        # nearest to the old group: the order follows the labels, and not all outliers end in the last edge.
        center = shares[order[-(len(order) % group or group) :]].mean(0)
        distance = np.abs(shares - center).sum(1).round(9)  # ties go to the lowest id, on every machine
        order.append(int(np.where(left, distance, np.inf).argmin()))
        left[order[-1]] = False
    return np.array(order)

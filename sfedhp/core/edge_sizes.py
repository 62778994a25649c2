"""How many clients each edge has: one number for all, or a list with a number for each."""

from __future__ import annotations

from collections.abc import Sequence

from sfedhp.core.errors import InputError

DEFAULT_EDGES, DEFAULT_CLIENTS_PER_EDGE = 4, 5  # of an experiment; the data may decide instead
_MOST_EDGES = 10**7


def edge_sizes(edges: int, clients_per_edge: int | Sequence[int]) -> tuple[int, ...]:
    """How many clients each edge has.

    Args:
        edges: how many there are; a list of clients decides, where this is the default.
        clients_per_edge: the clients of every edge, or a list with those of each.

    Raises:
        InputError: there is none, an edge has none, or the list has another length than `edges`.
    """
    if edges < 1:
        raise InputError(f"edges = {edges} is out of range: it must be at least 1.")
    if edges > _MOST_EDGES:
        raise InputError(f"edges = {edges} is out of range: it must be at most {_MOST_EDGES}.")
    sizes = (clients_per_edge,) * edges if isinstance(clients_per_edge, int) else tuple(clients_per_edge)
    if not sizes or min(sizes) < 1:
        raise InputError(
            f"clients_per_edge = {shown(clients_per_edge)} is out of range: every edge must have at least 1."
        )
    if edges not in (len(sizes), DEFAULT_EDGES):
        raise InputError(
            f"edges = {edges}, but clients_per_edge = {shown(clients_per_edge)} has {len(sizes)} numbers, "
            f"one for each edge: leave edges out, or give a list of {edges}."
        )
    return sizes


def as_option(sizes: Sequence[int]) -> int | tuple[int, ...]:
    """The clients of each edge as the option `clients_per_edge`: one number where all are equal."""
    return sizes[0] if len(set(sizes)) == 1 else tuple(sizes)


def shown(clients_per_edge: int | Sequence[int]) -> str:
    """The option in a user's notation: 3 or [2, 4]."""
    return str(clients_per_edge if isinstance(clients_per_edge, int) else list(clients_per_edge))

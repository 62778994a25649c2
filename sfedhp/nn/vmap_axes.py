"""The axis of the clients in what `vmap` gives to an operation that has a rule for it."""

from __future__ import annotations

from torch import Tensor


def clients_first(value: Tensor, axis: int | None, clients: int) -> Tensor:
    """A value of every client, with the clients first.

    Args:
        value: of all clients, or the same for each.
        axis: of the clients in it; None: it has none, and each client has this value.
        clients: how many there are.
    """
    return value.expand(clients, *value.shape) if axis is None else value.movedim(axis, 0)

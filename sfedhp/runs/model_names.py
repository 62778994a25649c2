"""The names of a run's models in files and in Python: those of the data, if it has names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sfedhp.core.errors import InputError, did_you_mean
from sfedhp.core.text import file_names
from sfedhp.data import Federation


class ModelNames:
    """Finds edges and clients by name, and names their files.

    Without names in the data, an edge is called `edge-i` and a client `client-i-j`, by its edge and seat.
    """

    def __init__(self, federation: Federation):
        names, seats = federation.names, federation.seats
        edges = {f"edge-{edge}": edge for edge in range(len(seats))}
        places = {int(seats[edge, seat]): (edge, seat) for edge, seat in np.argwhere(seats >= 0).tolist()}
        clients = {f"client-{edge}-{seat}": (edge, seat) for edge, seat in places.values()}
        self._edges = dict(zip(names.edges, range(len(seats)), strict=True)) if names.edges else edges
        self._clients = (
            {name: places[client] for client, name in enumerate(names.clients)} if names.clients else clients
        )
        self._edge_files, self._client_files = list(edges), {place: name for name, place in clients.items()}
        if names.edges:
            self._edge_files = [f"edge-{name}" for name in file_names(names.edges)]
        if names.clients:
            safe = [f"client-{name}" for name in file_names(names.clients)]
            self._client_files = {places[client]: name for client, name in enumerate(safe)}

    def edge_file(self, edge: int) -> str:
        """The name of the file of an edge's model, without its suffix."""
        return self._edge_files[edge]

    def client_file(self, edge: int, seat: int) -> str:
        """The same for a client's model; for an empty seat, which has none, by its place."""
        return self._client_files.get((edge, seat), f"client-{edge}-{seat}")

    def find_edge(self, name: str) -> int:
        """The number of the edge of this name.

        Raises:
            InputError: there is none; names the nearest.
        """
        if name not in self._edges:
            raise _unknown("edge", name, self._edges)
        return self._edges[name]

    def find_client(self, name: str) -> tuple[int, int]:
        """The edge and the seat of the client of this name.

        Raises:
            InputError: there is none; names the nearest.
        """
        if name not in self._clients:
            raise _unknown("client", name, self._clients)
        return self._clients[name]


def _unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    names = list(known)
    hint = did_you_mean(name, names, f"the first is {names[0]!r}.", repr)
    return InputError(f"There is no {what} {name!r}: {hint}")

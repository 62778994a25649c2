"""The models of a run, as modules and as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from sfedhp.runs.files import write_atomically
from sfedhp.simulator import Simulator, State
from sfedhp.vectors import Factored, dense, tree_map


class Models:
    """What a simulation has learnt: one global model, a model for each edge, a model for each client.

    A global or an edge's model wears the mean of the running statistics below it, a client's model its own.
    """

    def __init__(
        self,
        simulator: Simulator,
        state: State,
        edges: int,
        clients_per_edge: int,
        run: tuple[int, ...] = (),
    ):
        self._simulator, self._state = simulator, state
        self._network = simulator.task.network
        self._seats = (edges, clients_per_edge)
        self._run = run  # its place in a stack of runs; empty without one

    def global_model(self) -> nn.Module | None:
        """w, or None where the method has no global model."""
        flat = self._global()
        return None if flat is None else self._network.build(*flat)

    def edge_model(self, edge: int) -> nn.Module | None:
        """The model of an edge's site, or None where the method has none."""
        flat = self._edge(edge)
        return None if flat is None else self._network.build(*flat)

    def client_model(self, edge: int, client: int) -> nn.Module | None:
        """A client's own model, or None where the method has none or the seat is empty."""
        flat = self._client(edge, client)
        return None if flat is None else self._network.build(*flat)

    def save(self, folder: Path) -> None:
        """Write `global`, `edge-i` and `client-i-j` as safetensors, as far as the method has them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, model, statistics in self._all():
            tensors = self._network.state_dict(model, statistics)
            path = folder / f"{name}.safetensors"
            write_atomically(path, lambda beside, tensors=tensors: save_file(tensors, beside))  # type: ignore[misc]

    def _all(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        edges, clients = self._seats
        named: Any = [("global", self._global())]
        named += [(f"edge-{edge}", self._edge(edge)) for edge in range(edges)]
        for edge in range(edges):
            named += [(f"client-{edge}-{client}", self._client(edge, client)) for client in range(clients)]
        yield from ((name, *flat) for name, flat in named if flat is not None)

    def _global(self) -> tuple[Tensor, Tensor] | None:
        served = self._state.served
        model = self._simulator.algorithm.global_model(served.state)
        return None if model is None else (model[self._run], served.tail[self._run])

    def _edge(self, edge: int) -> tuple[Tensor, Tensor] | None:
        edges = self._state.edges
        model = None if edges is None else self._simulator.algorithm.edge_model(edges.state)
        place = (*self._run, edge)
        return None if model is None or edges is None else (model[place], edges.tail[place])

    def _client(self, edge: int, client: int) -> tuple[Tensor, Tensor] | None:
        personal, seat = self._state.personal, self._simulator.place(edge, client)
        if seat is None or not isinstance(personal, Tensor | Factored):
            return None
        place = (*self._run, *seat)
        statistics = self._state.statistics[place]
        if isinstance(personal, Factored):
            shared = personal.anchor.shape[-2] == 1
            anchor = personal.anchor[(*place[:-1], 0) if shared else place]
            layers = tree_map(lambda tensor: tensor[place], personal.layers)
            return dense(Factored(anchor, layers)), statistics
        return personal[place], statistics

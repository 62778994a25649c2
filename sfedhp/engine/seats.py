"""The seats of a simulated federation, and the axes in which an algorithm gets the clients on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Seats:
    """Seats (runs?, edges, clients per edge), of which some may be empty.

    A three-tier method gets clients as they are seated. A two-tier method gets (runs?, clients): all edges in
    a row, without the seats that are empty in every run.
    """

    tiers: Literal[2, 3]
    runs: int  # leading axes that are runs: 0 or 1
    edges: int
    clients_per_edge: int
    taken: Tensor  # the numbers of the seats that are taken in any run, edge by edge

    @classmethod
    def of(cls, sizes: Tensor, tiers: Literal[2, 3], runs: int) -> Seats:
        """The seats of clients with these sizes, (runs?, edges, clients per edge); 0: an empty seat."""
        edges, clients = sizes.shape[-2:]
        taken = (sizes > 0).reshape(-1, edges * clients).any(0).nonzero().squeeze(-1)
        return cls(tiers, runs, edges, clients, taken)

    def arrange(self, tensor: Tensor) -> Tensor:
        """A tensor over all seats as one over the clients that the method sees."""
        if self.tiers == 3:
            return tensor
        flat = tensor.flatten(self.runs, self.runs + 1)
        full = len(self.taken) == flat.shape[self.runs]
        return flat if full else flat.index_select(self.runs, self.taken)

    def index(self, edge: int, client: int) -> tuple[int, ...] | None:
        """The index of a seat's client within a run, as the method sees it; None for an empty seat."""
        seat = edge * self.clients_per_edge + client
        found = (self.taken == seat).nonzero().flatten().tolist()
        if client >= self.clients_per_edge or not found:
            return None
        return (edge, client) if self.tiers == 3 else (found[0],)


def spread_over(model: Tensor, lead: torch.Size, runs: int) -> Tensor:
    """A model of each run, (runs?, d), for every client of a stack, (*lead, d), without a copy."""
    own = model.reshape(*model.shape[:-1], *(1,) * (len(lead) - runs), model.shape[-1])
    return own.expand(*lead, model.shape[-1])

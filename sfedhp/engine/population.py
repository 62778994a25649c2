"""Two tiers with more clients than fit in memory: a round costs only what its sampled clients cost.

`Simulator` stacks the rows of all clients, and writes the state of all of them in every round. A `Population`
loads only the rows of sampled clients, and stores the state of clients that were sampled before. Both take
the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, choose_of_many, key
from sfedhp.core.trees import tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.client_stack import ClientStack
from sfedhp.engine.links import Links
from sfedhp.engine.rounds import Message, Served, everybody, serve, stepping
from sfedhp.engine.state import ClientState
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from sfedhp.wire.direction import Direction


class HeldRows(NamedTuple):
    """The rows of some clients, padded to the longest."""

    inputs: Tensor  # (clients, rows, *shape)
    labels: Tensor  # (clients, rows)
    sizes: Tensor  # (clients,)


class RowSource(Protocol):
    """The interface of a source of clients' rows."""

    @property
    def clients(self) -> int:
        """How many there are, numbered from 0."""

    def take(self, ids: Tensor) -> HeldRows:
        """The rows of the sampled clients, whose ids are (drawn,)."""


@dataclass(frozen=True)
class KeyedRows:
    """Every client holds rows of a common pool that its key draws, so nothing is stored for a client."""

    inputs: Tensor  # (pool, *shape)
    labels: Tensor  # (pool,)
    clients: int
    rows: int  # of a client
    seed: int

    def take(self, ids: Tensor) -> HeldRows:
        """See `RowSource`."""
        own = key(self.seed, ROLES["holding"], ids).unsqueeze(-1)
        places = key(own, torch.arange(self.rows)).remainder(len(self.labels))
        sizes = torch.full_like(ids, self.rows)
        return HeldRows(self.inputs[places], self.labels[places], sizes)


@dataclass(frozen=True)
class MappedRows:
    """Rows in files, such as `np.load(file, mmap_mode="r")`; only rows of sampled clients are read."""

    inputs: NDArray[Any]  # (rows, *shape), client after client
    labels: NDArray[Any]  # (rows,)
    starts: NDArray[np.int64]  # (clients + 1,): first row of each client, then the end of the last
    scale: float = 1.0  # divisor of the inputs, such as 255 for pixels

    @property
    def clients(self) -> int:
        """How many clients the files have."""
        return len(self.starts) - 1

    def take(self, ids: Tensor) -> HeldRows:
        """See `RowSource`."""
        bounds = [(int(self.starts[client]), int(self.starts[client + 1])) for client in ids.tolist()]
        sizes = torch.tensor([last - first for first, last in bounds])
        shape = (len(bounds), int(sizes.max()))
        inputs = np.zeros((*shape, *self.inputs.shape[1:]), np.float32)
        labels = np.zeros((*shape, *self.labels.shape[1:]), self.labels.dtype)
        for place, (first, last) in enumerate(bounds):
            inputs[place, : last - first] = self.inputs[first:last]
            labels[place, : last - first] = self.labels[first:last]
        if self.scale != 1:
            inputs /= self.scale
        return HeldRows(torch.from_numpy(inputs), torch.from_numpy(labels), sizes)


@dataclass
class Population:
    """Runs a two-tier method on clients of which some are sampled in each round."""

    algorithm: Algorithm
    network: Network
    rows: RowSource
    sampled: int  # clients of a round
    seed: int
    batch_size: int  # 0: all rows of a client
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    at_once: int = 0  # sampled clients computed together; 0: all
    task_options: dict[str, Any] = field(default_factory=dict)  # further fields of `Task`, such as the loss
    kept: dict[int, ClientState] = field(default_factory=dict, init=False)  # of clients that were drawn

    def __post_init__(self) -> None:
        name = type(self.algorithm).__name__
        if self.algorithm.tiers != 2 or self.algorithm.state_per_member:
            raise InputError(
                f"{name} cannot run on a population: its edges, or its cloud, keep a state for each "
                f"client; choose a method of two tiers whose cloud holds one model."
            )
        if not 0 < self.sampled <= self.rows.clients:
            raise InputError(
                f"{self.sampled} of {self.rows.clients} clients cannot be drawn: set between 1 and all."
            )
        initial, statistics = (part.to(self.device) for part in self.network.initial())
        self.initial, self.statistics = initial, statistics
        self.served = Served(self.algorithm.cloud_start(initial, self.sampled), statistics)
        self.round = 0

    def run(self, rounds: int) -> Iterator[Served]:
        """Continue up to `rounds` cloud rounds; yields what the cloud holds after each."""
        step = stepping(self.algorithm.cloud_step, Clock)
        turns = range(self.round, rounds)
        for served, _ in serve(self.served, step, partial(self._gather), turns, everybody, never_empty=True):
            self.served, self.round = served, self.round + 1
            yield served

    def drawn(self, turn: int) -> Tensor:
        """The sampled clients of a round, (sampled,), in order, as `drawing` draws them for a `Simulator`."""
        own = key(key(self.seed, ROLES["draw"]), turn)
        return choose_of_many(own, self.rows.clients, self.sampled)

    def _gather(self, served: Served, turn: int, _: Tensor | None) -> tuple[Message, Tensor]:
        """Run a step of the sampled clients; their uploads count."""
        ids = self.drawn(turn)
        stack, clients = self._stack(ids)
        received = self.algorithm.cloud_message(served.state, len(ids))
        result = stack.step(received, clients, Clock(turn))
        given = stack.step_input(received, clients)
        replies = stack.replies(given, result, Clock(turn), Direction.CLIENT_CLOUD)
        self._keep(ids, replies.clients)
        return replies.delivery.message, replies.weights

    def _stack(self, ids: Tensor) -> tuple[ClientStack, ClientState]:
        """The drawn clients with their rows, and what they hold."""
        held = HeldRows(*(part.to(self.device) for part in self.rows.take(ids)))
        task = Task(
            self.network,
            held.inputs,
            held.labels,
            held.sizes,
            key(self.seed, ROLES["client"], ids).to(self.device),
            self.batch_size,
            min_rows=int(held.sizes.min()),
            **self.task_options,
        )
        stack = ClientStack(
            algorithm=self.algorithm,
            task=task,
            ids=ids.to(self.device),
            links=Links({}),
            lost=None,
            at_once=self.at_once,
            runs=0,
            never_empty=True,
        )
        return stack, self._held(ids, task)

    def _held(self, ids: Tensor, task: Task) -> ClientState:
        """The states of the sampled clients: their last ones, or the initial state."""
        spread = self.initial.expand(len(ids), -1)
        begin = ClientState(
            self.algorithm.client_start(spread, replace(task, statistics=self._own_statistics(len(ids)))),
            self._own_statistics(len(ids)),
        )
        known = [
            (place, self.kept[client]) for place, client in enumerate(ids.tolist()) if client in self.kept
        ]
        if not known:
            return begin
        state = tree_map(lambda part: part.clone(memory_format=torch.contiguous_format), begin)
        for place, own in known:
            tree_map(lambda part, value, place=place: part[place].copy_(value), state, own)
        return state

    def _keep(self, ids: Tensor, clients: ClientState) -> None:
        """Store the states of the sampled clients, if they have any."""
        if not self.network.s and clients.personal == ():
            return
        for place, client in enumerate(ids.tolist()):
            own: ClientState = tree_map(
                lambda part, place=place: part[place].clone(),
                clients,
            )
            self.kept[client] = own

    def _own_statistics(self, clients: int) -> Tensor:
        return self.statistics.expand(clients, -1).clone()

"""All clients at once: the roles of an algorithm, stacked over runs, edges and clients on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.rounds import Message, Served, drawing, everybody, serve, stepping
from sfedhp.tasks import Task
from sfedhp.types import Clock
from sfedhp.vectors import Factored, dense, keep, tree_map
from sfedhp.wire.ledger import Ledger
from sfedhp.wire.links import Link

Lost = Callable[[Clock, Tensor], Tensor]  # (clock, client ids) -> bool, who does not answer


@dataclass
class State:
    """Everything a run is between two rounds: what a checkpoint holds."""

    round: int  # cloud rounds done
    served: Served  # the cloud
    edges: Served | None  # the edges at the end of the last round; None before it, or with two tiers
    personal: Any  # the clients' own
    statistics: Tensor  # (*lead, s), the clients' running statistics
    sent: dict[str, Tensor] = field(
        default_factory=dict
    )  # the last messages down, where links need them as bases


@dataclass
class Simulator:
    """Runs an algorithm on a stack `(runs?, edges, clients)`; two-tier methods see `(runs?, clients)`.

    A runs axis is there where `initial` has one: (runs, d) instead of (d,).
    """

    algorithm: Algorithm
    task: Task  # stacked over (runs?, edges, clients); a seat of size 0 is empty
    ids: Tensor  # (runs?, edges, clients) the client ids
    initial: Tensor  # (runs?, d)
    tail: Tensor  # (runs?, s)
    stream: Tensor  # (runs?,) the key of each run's draws of members
    sampled: int = 0  # members that count in a round (two tiers: that train); 0: all
    links: Mapping[str, Link] = field(
        default_factory=dict
    )  # by direction; where none is given, nothing is changed
    lost: Lost | None = None  # who does not answer
    clients_at_once: int = 0  # clients of an edge (two tiers: of all) computed together; 0: all
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.runs = self.initial.ndim - 1
        self._clients_per_edge = self.ids.shape[-1]
        self._seats = (
            (self.task.sizes > 0).reshape(-1, self.ids.shape[-2:].numel()).any(0).nonzero().squeeze(-1)
        )
        self.ids = self.arrange(self.ids.expand(self.task.lead))
        task = self.task = self.task.map(self.arrange)
        self.members = task.lead[self.runs]  # under the cloud
        seated = task.sizes > 0
        if self.algorithm.tiers == 3:
            edges = torch.arange(self.members, device=self.ids.device).expand(task.lead[:-1])
            self.draw = drawing(self.stream, self.sampled, edges, seated.any(-1))
        else:
            self.draw = drawing(self.stream, self.sampled, self.ids, seated)
        self.state = State(
            0,
            Served(self.algorithm.cloud_start(self.initial, self.members), self.tail),
            None,
            self.algorithm.client_start(self.everyone(self.initial), task),
            self.everyone(self.tail).clone(),
        )

    def arrange(self, tensor: Tensor) -> Tensor:
        """A tensor over (runs?, edges, clients) as the method sees its clients.

        With two tiers the edges are ignored, and with them their empty seats.
        """
        if self.algorithm.tiers == 3:
            return tensor
        flat = tensor.flatten(self.runs, self.runs + 1)
        return (
            flat if len(self._seats) == flat.shape[self.runs] else flat.index_select(self.runs, self._seats)
        )

    def place(self, edge: int, client: int) -> tuple[int, ...] | None:
        """Where the client on this seat stands in the stack of a run; None for an empty seat."""
        seat = edge * self._clients_per_edge + client
        at = (self._seats == seat).nonzero().flatten().tolist()
        if not at:
            return None
        return (edge, client) if self.algorithm.tiers == 3 else (at[0],)

    def everyone(self, model: Tensor) -> Tensor:
        """A model of each run (runs?, d) to every client (*lead, d), without a copy."""
        own = model.reshape(*model.shape[:-1], *(1,) * (len(self.task.lead) - self.runs), model.shape[-1])
        return own.expand(*self.task.lead, model.shape[-1])

    def run(self, rounds: int) -> Iterator[State]:
        """Go on to `rounds` cloud rounds; yields the state after each."""
        step = stepping(self.algorithm.cloud_step, Clock)
        turns = range(self.state.round, rounds)
        for served, _ in serve(self.state.served, step, self._gather, turns, self.draw):
            self.state = replace(self.state, round=self.state.round + 1, served=served)
            yield self.state

    def received(self, state: State | None = None) -> Tensor:
        """What every client would receive if a round began now, or after `state`: (*lead, d)."""
        message = self.algorithm.cloud_message((state or self.state).served.state, self.members)
        if self.algorithm.tiers == 2:
            return message
        clients = self.task.lead[-1]
        return self.algorithm.edge_message(self.algorithm.edge_start(message, clients), clients)

    def _gather(self, served: Served, turn: int, drawn: Tensor | None) -> tuple[Message, Tensor]:
        """The cloud's: ask the members and wait."""
        message = self.algorithm.cloud_message(served.state, self.members)
        if self.algorithm.tiers == 2:
            received = self._send(message, "cloud_client", drawn)
            return self._clients(received, Clock(turn), drawn, "client_cloud")
        return self._edges(self._send(message, "cloud_edge", None), served.tail, turn, drawn)

    def _edges(
        self, received: Tensor, tail: Tensor, turn: int, drawn: Tensor | None
    ) -> tuple[Message, Tensor]:
        """All edges serve their clients for the edge rounds; those drawn count."""
        algorithm, clients = self.algorithm, self.task.lead[-1]

        def gather(served: Served, edge_round: int, _: Tensor | None) -> tuple[Message, Tensor]:
            message = self._send(
                algorithm.edge_message(served.state, clients), "edge_client", self.task.sizes
            )
            return self._clients(message, Clock(turn, edge_round), None, "client_edge")

        start = Served(
            algorithm.edge_start(received, clients), tail.unsqueeze(-2).expand(*received.shape[:-1], -1)
        )
        step = stepping(algorithm.edge_step, lambda edge_round: Clock(turn, edge_round))
        last = torch.zeros(self.task.lead, dtype=self.tail.dtype, device=self.tail.device)
        edges = start
        for served, weights in serve(start, step, gather, range(algorithm.edge_rounds), everybody):
            edges, last = served, keep(weights.sum(-1) > 0, weights, last)
        self.state = replace(self.state, edges=edges)
        # An edge weighs what its clients weighed in its last real step; zero if none answered all round.
        total = last.sum(-1)
        weights = total if algorithm.weighting == "size" else (total > 0).to(total.dtype)
        if drawn is not None:
            weights = weights * drawn
        upload = Message(algorithm.edge_upload(edges.state), edges.tail)
        upload, lengths, nonzeros = self._upload(upload, "edge_cloud", received)
        self.ledger.book("edge_cloud", lengths, nonzeros, weights)
        return upload, weights

    def _clients(
        self, received: Tensor, clock: Clock, drawn: Tensor | None, direction: str
    ) -> tuple[Message, Tensor]:
        """All clients (or those drawn) step at once."""
        task, personal, ids = (
            replace(self.task, statistics=self.state.statistics),
            self.state.personal,
            self.ids,
        )
        if drawn is not None:
            chosen = _Chosen(drawn, self.runs)
            task, received, ids = task.map(chosen.pick), chosen.pick(received), chosen.pick(ids)
            personal = tree_map(chosen.pick, personal)
        before = _worn(task)
        model, after, statistics = self._step(received, personal, task, clock)
        present = task.sizes > 0
        if self.lost is not None:
            present = present & ~self.lost(clock, ids)
            after, statistics = keep(present, after, personal), keep(present, statistics, before)
        weights = present.to(self.tail.dtype)
        if self.algorithm.weighting == "size":
            weights = weights * task.sizes
        upload, lengths, nonzeros = self._upload(Message(model, statistics), direction, received)
        everywhere = weights
        if drawn is not None:
            after = tree_map(chosen.put, self.state.personal, after)
            statistics = chosen.put(self.state.statistics, statistics)
            lengths, nonzeros, everywhere = (
                chosen.put(torch.zeros(self.task.lead).to(part), part)
                for part in (lengths, nonzeros, weights)
            )
            if self.algorithm.keeps_members:
                whole = torch.zeros(*self.task.lead, upload.tail.shape[-1]).to(upload.tail)
                blank = torch.zeros_like(self.everyone(self.initial))
                upload = Message(chosen.put(blank, dense(upload.model)), chosen.put(whole, upload.tail))
                weights = everywhere
        self.ledger.book(direction, lengths, nonzeros, everywhere)
        self.state = replace(self.state, personal=after, statistics=statistics)
        return upload, weights

    def _step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> tuple[Any, Any, Tensor]:
        """`client_step` for the whole stack, in pieces where not all clients fit at once."""
        axis = len(task.lead) - 1
        width = self.clients_at_once or task.lead[axis]
        pieces = []
        for first in range(0, task.lead[axis], width):
            piece = _Piece(axis, first, min(width, task.lead[axis] - first))
            part = task.map(piece.cut)
            result = self.algorithm.client_step(
                piece.cut(received), tree_map(piece.cut, personal), part, clock
            )
            pieces.append((result.upload, result.personal, _worn(part)))
        if len(pieces) == 1:
            return pieces[0]
        return tree_map(lambda *parts: torch.cat(parts, axis), *(_built(piece) for piece in pieces))

    def _send(self, messages: Tensor, direction: str, present: Tensor | None) -> Tensor:
        """Down to the members; what both sides then hold is the base of the next difference."""
        link = self._link(direction)
        base = self.state.sent.get(direction)
        arrived, lengths, nonzeros = link.carry(messages, messages.shape[-1], base)
        self.ledger.book(direction, lengths, nonzeros, present)
        received = dense(arrived)
        if link.options.difference:
            held = received
            if present is not None and base is not None:
                held = keep(present > 0, received, base)
            self.state = replace(self.state, sent={**self.state.sent, direction: held})
        return received

    def _upload(self, upload: Message, direction: str, received: Tensor) -> tuple[Message, Tensor, Tensor]:
        """Up to the server, the statistics as a tail; a difference is against what the member received."""
        model, tail = upload
        size, link = self.initial.shape[-1], self._link(direction)
        if not tail.shape[-1]:
            model, lengths, nonzeros = link.carry(model, size, received)
        else:
            whole, lengths, nonzeros = link.carry(torch.cat([dense(model), tail], -1), size, received)
            model, tail = dense(whole)[..., :size], dense(whole)[..., size:]
        return Message(model, tail), lengths, nonzeros

    def _link(self, direction: str) -> Link:
        return self.links.get(direction, _PLAIN)


_PLAIN = Link()


@dataclass(frozen=True)
class _Piece:
    """Some consecutive clients of a stack."""

    axis: int
    first: int
    width: int

    def cut(self, tensor: Tensor) -> Tensor:
        if tensor.shape[self.axis] == 1:
            return tensor  # an anchor that all clients share
        return tensor.narrow(self.axis, self.first, self.width)


@dataclass(frozen=True)
class _Chosen:
    """The clients drawn of a two-tier stack, the same number in every run."""

    drawn: Tensor  # (runs?, clients) bool
    axis: int

    def _index(self, like: Tensor) -> Tensor:
        count = int(self.drawn.reshape(-1, self.drawn.shape[-1])[0].sum())
        first = self.drawn.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices[..., :count]
        wide = first.reshape(*first.shape, *(1,) * (like.ndim - first.ndim))
        return wide.expand(*first.shape, *like.shape[first.ndim :])

    def pick(self, whole: Tensor) -> Tensor:
        return whole.gather(self.axis, self._index(whole))

    def put(self, whole: Tensor, part: Tensor) -> Tensor:
        return whole.scatter(self.axis, self._index(whole), part)


def _worn(task: Task) -> Tensor:
    assert task.statistics is not None, "the engine lends statistics for every step"
    return task.statistics


def _built(piece: tuple[Any, Any, Tensor]) -> tuple[Any, Any, Tensor]:
    """Pieces with a shared anchor cannot be laid side by side as they are."""
    upload, personal, statistics = piece
    return (
        dense(upload),
        dense(personal) if isinstance(personal, Factored) else personal,
        statistics,
    )

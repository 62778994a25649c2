"""All clients at once: the roles of an algorithm, stacked over runs, edges and clients on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.core.factored import dense, placed
from sfedhp.core.scalars import on_device
from sfedhp.core.trees import keep, tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.cuda_graphs import PENDING, Recorder, Worker
from sfedhp.engine.rounds import Message, Served, drawing, everybody, serve, stepping
from sfedhp.engine.slices import Chosen, Piece, in_pieces, pieces
from sfedhp.engine.state import Clients, State
from sfedhp.nn.task import Task
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Entry, Ledger
from sfedhp.wire.link import Link

Lost = Callable[[Clock, Tensor], Tensor]  # (clock, client ids) -> bool, who does not answer


# The edges, what clients weighed in their edge's last real step, what they keep, and the book.
Answer = tuple[Served, Tensor, Clients, tuple[Entry, ...]]


@dataclass
class Simulator:
    """Runs an algorithm on a stack `(runs?, edges, clients)`; two-tier methods see `(runs?, clients)`.

    A runs axis is there where `initial` has one: (runs, d) instead of (d,).
    """

    algorithm: Algorithm
    task: Task  # stacked over (runs?, edges, clients); a seat of size 0 is empty
    ids: Tensor  # (runs?, edges, clients) the client ids
    initial: Tensor  # (runs?, d)
    statistics: Tensor  # (runs?, s), the initial running statistics
    stream: Tensor  # (runs?,) the key of each run's draws of members
    sampled: int = 0  # members that count in a round (two tiers: that train); 0: all
    # By direction; where none is given, nothing is changed.
    links: Mapping[Direction, Link] = field(default_factory=dict)
    lost: Lost | None = None  # who does not answer
    clients_at_once: int = 0  # clients of a run computed together; 0: all
    ledger: Ledger = field(default_factory=Ledger)
    graphs: bool = True  # whether to record rounds as CUDA graphs, where there is a GPU and that can be done
    elsewhere: Callable[[Simulator], AbstractContextManager[Worker]] | None = None  # who works instead of us
    captured: str = field(default=PENDING, init=False)  # whether they are, or why not

    def __post_init__(self) -> None:
        self.runs = self.initial.ndim - 1
        self.algorithm = on_device(self.algorithm, self.initial.device)
        self.edges, self._clients_per_edge = self.ids.shape[-2:]
        self._seats = (
            (self.task.sizes > 0).reshape(-1, self.ids.shape[-2:].numel()).any(0).nonzero().squeeze(-1)
        )
        self.ids = self.arrange(self.ids.expand(self.task.lead))
        task = self.task = self.task.map(self.arrange)
        self.members = task.lead[self.runs]  # under the cloud
        seated = task.sizes > 0
        self._peopled = bool(seated.any(-1).all())
        if self.algorithm.tiers == 3:
            edges = torch.arange(self.members, device=self.ids.device).expand(task.lead[:-1])
            self.draw = drawing(self.stream, self.sampled, edges, seated.any(-1))
        else:
            self.draw = drawing(self.stream, self.sampled, self.ids, seated)
        self.state = State(
            0,
            Served(self.algorithm.cloud_start(self.initial, self.members), self.statistics),
            None,
            self.algorithm.client_start(self.everyone(self.initial), task),
            self.everyone(self.statistics).clone(),
        )

    def arrange(self, tensor: Tensor) -> Tensor:
        """A tensor over (runs?, edges, clients) as the method sees its clients.

        With two tiers the edges are ignored, and with them their empty seats.
        """
        if self.algorithm.tiers == 3:
            return tensor
        flat = tensor.flatten(self.runs, self.runs + 1)
        full = len(self._seats) == flat.shape[self.runs]
        return flat if full else flat.index_select(self.runs, self._seats)

    def place(self, edge: int, client: int) -> tuple[int, ...] | None:
        """Where the client on this seat stands in the stack of a run; None for an empty seat."""
        seat = edge * self._clients_per_edge + client
        at = (self._seats == seat).nonzero().flatten().tolist()
        if client >= self._clients_per_edge or not at:
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
        with self._worker() as work:
            gather = partial(self._gather, work)
            for served, _ in serve(self.state.served, step, gather, turns, self.draw, self._certain):
                self.captured = work.word
                self.state = replace(self.state, round=self.state.round + 1, served=served)
                yield self.state

    def received(self, state: State | None = None) -> Tensor:
        """What every client would receive if a round began now, or after `state`: (*lead, d)."""
        message = self.algorithm.cloud_message((state or self.state).served.state, self.members)
        if self.algorithm.tiers == 2:
            return message
        clients = self.task.lead[-1]
        return self.algorithm.edge_message(self.algorithm.edge_start(message, clients), clients)

    def _gather(
        self, work: Worker, served: Served, turn: int, drawn: Tensor | None
    ) -> tuple[Message, Tensor]:
        """The cloud's: ask the members and wait."""
        message = self.algorithm.cloud_message(served.state, self.members)
        held = Clients(self.state.personal, self.state.statistics)
        if self.algorithm.tiers == 2:
            received = self._send(message, Direction.CLOUD_CLIENT, drawn, self.ledger)
            stepped = work(turn, received, held, drawn)
            upload, weights, held = self._answers(
                received, held, stepped, Clock(turn), drawn, Direction.CLIENT_CLOUD, self.ledger
            )
        else:
            received = self._send(message, Direction.CLOUD_EDGE, None, self.ledger)
            edges, last, held, booked = work(turn, received, served.statistics, held)
            for direction, entry in zip(_WITHIN, booked, strict=True):
                self.ledger.add(direction, entry)
            self.state = replace(self.state, edges=edges)
            upload, weights = self._edge_answers(received, edges, last, drawn)
        self.state = replace(self.state, personal=held.personal, statistics=held.statistics)
        return upload, weights

    def _worker(self) -> AbstractContextManager[Worker]:
        if self.elsewhere is not None:
            return self.elsewhere(self)
        function = self.edge_rounds if self.algorithm.tiers == 3 else self._client_steps
        return nullcontext(Recorder(function, self.initial.device, self._obstacle()))

    def edge_rounds(self, turn: int | Tensor, received: Tensor, statistics: Tensor, held: Clients) -> Answer:
        """All edges serve their clients for the edge rounds, some edges after the others if not all at once.

        Edges do not meet before the cloud's turn: what some of them hold stays near the processor until they
        are done, and only then is it put where the state of all is.
        """
        edges, clients = self.task.lead[-2:]
        width = max(self.clients_at_once // clients, 1) if self.clients_at_once else edges
        if width >= edges:
            return self._edge_rounds(turn, received, statistics, held)
        whole: Any = None
        for piece in pieces(self.runs, edges, width):
            part = self._only(piece)
            own = part._edge_rounds(turn, piece.cut(received), statistics, tree_map(piece.cut, held))
            both = (own, tuple(part.state.sent.values()))
            whole = placed(whole, both, self.runs, piece.first, edges, shared=False)
        answer: Answer = whole[0]
        self.state = replace(self.state, sent=dict(zip(part.state.sent, whole[1], strict=True)))
        return answer

    def _only(self, piece: Piece) -> Simulator:
        """A simulator of some edges, which sees the same memory."""
        part = copy(self)
        part.task, part.ids = self.task.map(piece.cut), piece.cut(self.ids)
        sent = {name: piece.cut(base) for name, base in self.state.sent.items()}
        part.state = replace(self.state, sent=sent)
        return part

    def _edge_rounds(self, turn: int | Tensor, received: Tensor, statistics: Tensor, held: Clients) -> Answer:
        """See `edge_rounds`: all of them at once."""
        algorithm, clients, ledger = self.algorithm, self.task.lead[-1], Ledger()

        def gather(served: Served, edge_round: int, _: Tensor | None) -> tuple[Message, Tensor]:
            nonlocal held
            clock = Clock(turn, edge_round)
            sent = algorithm.edge_message(served.state, clients)
            message = self._send(sent, Direction.EDGE_CLIENT, self.task.sizes, ledger)
            if not algorithm.remembers and self.lost is None:
                held = Clients((), held.statistics)  # a large federation's would be there once more
            stepped = self.step(message, held, self.task, clock)
            upload, weights, held = self._answers(
                message, held, stepped, clock, None, Direction.CLIENT_EDGE, ledger
            )
            return upload, weights

        edges = Served(
            algorithm.edge_start(received, clients), statistics.unsqueeze(-2).expand(*received.shape[:-1], -1)
        )
        step = stepping(algorithm.edge_step, lambda edge_round: Clock(turn, edge_round))
        last = torch.zeros(self.task.lead, dtype=self.statistics.dtype, device=self.statistics.device)
        rounds = range(algorithm.edge_rounds)
        for served, weights in serve(edges, step, gather, rounds, everybody, self._certain):
            edges = served
            last = weights if self._certain else keep(weights.sum(-1) > 0, weights, last)
        booked = ledger.close()
        return edges, last, held, tuple(booked[direction] for direction in _WITHIN)

    def _edge_answers(
        self, received: Tensor, edges: Served, last: Tensor, drawn: Tensor | None
    ) -> tuple[Message, Tensor]:
        """What the edges send to the cloud; those drawn count."""
        # An edge weighs what its clients weighed in its last real step; zero if none answered all round.
        total = last.sum(-1)
        weights = total if self.algorithm.weighting == "size" else (total > 0).to(total.dtype)
        if drawn is not None:
            weights = weights * drawn
        upload = Message(self.algorithm.edge_upload(edges.state), edges.statistics)
        upload, lengths, nonzeros = self._upload(upload, Direction.EDGE_CLOUD, received)
        self.ledger.book(Direction.EDGE_CLOUD, lengths, nonzeros, weights)
        return upload, weights

    def _client_steps(
        self, turn: int | Tensor, received: Tensor, held: Clients, drawn: Tensor | None
    ) -> tuple[Any, Clients]:
        """All clients under the cloud (or those drawn) step at once."""
        if drawn is None:
            return self.step(received, held, self.task, Clock(turn))
        pick = self._chosen(drawn).pick
        return self.step(pick(received), tree_map(pick, held), self.task.map(pick), Clock(turn))

    def _answers(
        self,
        received: Tensor,
        held: Clients,
        stepped: tuple[Any, Clients],
        clock: Clock,
        drawn: Tensor | None,
        direction: Direction,
        ledger: Ledger,
    ) -> tuple[Message, Tensor, Clients]:
        """What arrives of the clients' (or those drawn's) steps, what each weighs, and what they keep."""
        (model, after), sizes, ids, before = stepped, self.task.sizes, self.ids, held
        if drawn is not None:
            chosen = self._chosen(drawn)
            received, sizes, ids = (chosen.pick(whole) for whole in (received, sizes, ids))
            before = tree_map(chosen.pick, held)
        present = sizes > 0
        if self.lost is not None:
            present = present & ~self.lost(clock, ids)
            after = Clients(*(keep(present, new, old) for new, old in zip(after, before, strict=True)))
        weights = present.to(self.statistics.dtype)
        if self.algorithm.weighting == "size":
            weights = weights * sizes
        upload, lengths, nonzeros = self._upload(Message(model, after.statistics), direction, received)
        everywhere = weights
        if drawn is not None:
            after = tree_map(chosen.put, held, after)
            lengths, nonzeros, everywhere = (
                chosen.put(part.new_zeros(self.task.lead), part) for part in (lengths, nonzeros, weights)
            )
            if self.algorithm.keeps_members:
                whole = upload.statistics.new_zeros(*self.task.lead, upload.statistics.shape[-1])
                blank = torch.zeros_like(self.everyone(self.initial))
                upload = Message(chosen.put(blank, dense(upload.model)), chosen.put(whole, upload.statistics))
                weights = everywhere
        ledger.book(direction, lengths, nonzeros, everywhere)
        return upload, weights, after

    def step(self, received: Tensor, held: Clients, task: Task, clock: Clock) -> tuple[Any, Clients]:
        """`client_step` for the whole stack, in pieces where not all clients are computed at once."""
        task = replace(task, statistics=held.statistics)
        work = partial(self._stepped, clock=clock)
        return in_pieces(work, len(task.lead) - 1, self.clients_at_once, received, held, task)

    def _stepped(self, received: Tensor, held: Clients, task: Task, clock: Clock) -> tuple[Any, Clients]:
        result = self.algorithm.client_step(received, held.personal, task, clock)
        assert task.statistics is not None, "the engine lends statistics for every step"
        return result.upload, Clients(result.personal, task.statistics)

    def _obstacle(self) -> str:
        """Why the members' work cannot be recorded as a CUDA graph, as far as that is known beforehand."""
        if not self.graphs:
            return "not asked for"
        if self.initial.device.type != "cuda":
            return f"the device is a {self.initial.device.type}"
        if self.lost is not None:
            return "who is lost is asked for on the host"
        if self.algorithm.tiers == 3 and any(self._link(direction).on_host for direction in _WITHIN):
            return "messages between clients and edges are coded on the host"
        return ""

    @property
    def _certain(self) -> bool:
        """Whether every server hears of somebody in every turn."""
        return self._peopled and self.lost is None

    def _chosen(self, drawn: Tensor) -> Chosen:
        return Chosen(drawn, self.runs, self.sampled)

    def _send(self, messages: Tensor, direction: Direction, present: Tensor | None, ledger: Ledger) -> Tensor:
        """Down to the members; what both sides then hold is the base of the next difference."""
        link = self._link(direction)
        base = self.state.sent.get(direction)
        arrived, lengths, nonzeros = link.carry(messages, messages.shape[-1], base)
        ledger.book(direction, lengths, nonzeros, present)
        received = dense(arrived)
        if link.options.difference:
            held = received
            if present is not None:
                # Whoever was never sent anything holds zeros, as its sender knows.
                held = keep(present > 0, received, torch.zeros_like(received) if base is None else base)
            self.state = replace(self.state, sent={**self.state.sent, direction: held})
        return received

    def _upload(
        self, upload: Message, direction: Direction, received: Tensor
    ) -> tuple[Message, Tensor, Tensor]:
        """Up to the server, with the statistics behind; a difference is against what the member received."""
        model, statistics = upload
        size, link = self.initial.shape[-1], self._link(direction)
        if not statistics.shape[-1]:
            model, lengths, nonzeros = link.carry(model, size, received)
        else:
            whole, lengths, nonzeros = link.carry(torch.cat([dense(model), statistics], -1), size, received)
            model, statistics = dense(whole)[..., :size], dense(whole)[..., size:]
        return Message(model, statistics), lengths, nonzeros

    def _link(self, direction: Direction) -> Link:
        return self.links.get(direction, _PLAIN)


_PLAIN = Link()
_WITHIN = (Direction.EDGE_CLIENT, Direction.CLIENT_EDGE)  # the directions below the edges

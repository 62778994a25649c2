"""A whole federation in one process: all clients at once, stacked over runs, edges and clients on one device.

The way of a round:

1. `Simulator.run` is the cloud: `rounds.serve`, the same loop as on a deployed cloud, asks for the members'
   uploads (`_gather_edges`, or with two tiers `_gather_clients`) and calls the algorithm's `cloud_step`.
2. The cloud's message goes down through `links.Links`.
3. A `Worker` does the members' part: here, recorded as a CUDA graph where that can be done, or on Ray.
   - three tiers: `edge_rounds.run_edge_rounds`, which is `serve` again, for all edges at once;
   - two tiers: `_client_steps`.
4. Either way `client_stack.ClientStack` calls the algorithm's `client_step` for all clients at once, and says
   what arrives of their replies: links, lost replies and weights.
5. The uploads go up through `links.Links`, and `serve` continues.

What must be kept for the next round, and no more, is the `state.State`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.algorithms.schedule import CONSTANT, ScheduleOptions
from sfedhp.core.aggregation import MEAN, AggregationOptions
from sfedhp.core.factored import dense
from sfedhp.core.late import NOBODY_LATE, LateOptions
from sfedhp.core.scalars import on_device
from sfedhp.core.trees import tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.client_stack import ClientStack, Lost, Replies, StepResult
from sfedhp.engine.cuda_graphs import GraphStatus, Recorder, Worker
from sfedhp.engine.edge_rounds import BELOW_EDGES, EdgeRoundsResult, of_idle, run_edge_rounds
from sfedhp.engine.late import Upload, at_start
from sfedhp.engine.links import Delivery, Links
from sfedhp.engine.noise import private_uploads
from sfedhp.engine.rounds import Draw, Message, Served, drawing, robust_uploads, serve, stepping
from sfedhp.engine.seats import Seats, spread_over
from sfedhp.engine.secure_sum import Secure
from sfedhp.engine.slices import Drawn
from sfedhp.engine.state import ClientState, State
from sfedhp.nn.task import Task
from sfedhp.privacy.options import NOT_PRIVATE, PrivacyOptions
from sfedhp.privacy.ring import SecureOptions
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Entry, Ledger
from sfedhp.wire.link import Link

WorkerFactory = Callable[["Simulator"], AbstractContextManager[Worker]]


@dataclass
class Simulator:
    """Runs an algorithm on a stack `(runs?, edges, clients)`; two-tier methods see `(runs?, clients)`.

    There is a runs axis where `initial` has one: (runs, d) instead of (d,).
    """

    algorithm: Algorithm
    task: Task  # stacked over (runs?, edges, clients); a seat of size 0 is empty
    ids: Tensor  # (runs?, edges, clients), the client ids
    initial: Tensor  # (runs?, d)
    statistics: Tensor  # (runs?, s), the initial running statistics
    stream: Tensor  # (runs?,), the key of each run's draws of members
    sampled: int = 0  # members that count in a round (two tiers: that train); 0: all
    links: Mapping[Direction, Link] = field(default_factory=dict)  # other messages are not changed
    aggregation: AggregationOptions = MEAN  # how all servers combine uploads
    factors: Tensor | None = None  # (runs?, edges, clients), by what malicious clients multiply their change
    late: LateOptions = NOBODY_LATE  # for how many edges the cloud waits
    # Seconds that the messages of a round take on the path of each edge, (runs?, edges), from their entries.
    path_seconds: Callable[[Mapping[Direction, Entry]], Tensor] | None = None
    lost: Lost | None = None  # whose replies are lost; None: no one's
    clients_at_once: int = 0  # clients of a run computed together; 0: all
    schedule: ScheduleOptions = CONSTANT  # of the rates
    secure: SecureOptions | None = None  # clients' servers learn sums alone; None: they read each upload
    privacy: PrivacyOptions = NOT_PRIVATE  # of uploads; the task has that of gradients
    ledger: Ledger = field(default_factory=Ledger)  # the traffic of the round
    graphs: bool = True  # record rounds as CUDA graphs, if there is a GPU and the run supports it
    # Makes the worker that computes the members' part of all rounds of a run; None: this process computes it.
    worker_factory: WorkerFactory | None = None
    graph_status: GraphStatus = field(default=GraphStatus(), init=False)

    def __post_init__(self) -> None:
        self.runs = self.initial.ndim - 1
        self.algorithm = on_device(self.algorithm, self.initial.device)
        if not self.algorithm.federated:
            self.links = {}  # nothing is sent
        self.seats = Seats.of(self.task.sizes, self.algorithm.tiers, self.runs)
        self.ids = self.seats.arrange(self.ids.expand(self.task.lead))
        if self.factors is not None:
            self.factors = self.seats.arrange(self.factors.expand(self.task.lead))
        task = self.task = self.task.map(self.seats.arrange)
        self.members = task.lead[self.runs]  # of the cloud
        self._all_servers_have_clients = bool((task.sizes > 0).any(-1).all())
        self.draw = self._draw()
        self.state = State(
            0,
            Served(self.algorithm.cloud_start(self.initial, self.members), self.statistics),
            None,
            self.algorithm.client_start(self.spread_to_clients(self.initial), task),
            self.spread_to_clients(self.statistics).clone(),
            late=at_start(self._message_down(), self.statistics, self.members) if self.late.quorum else None,
        )

    def run(self, rounds: int) -> Iterator[State]:
        """Continue up to `rounds` cloud rounds; yields the state after each."""
        robustly = robust_uploads(self.aggregation, self.algorithm.cloud_message)
        privately = private_uploads(self.privacy, "cloud", self.algorithm.cloud_message, self.stream)
        step = stepping(self.schedule.cloud_step(self.algorithm), Clock, robustly, privately)
        turns = range(self.state.round, rounds)
        with self._worker() as worker:
            gather = self._gather_edges if self.algorithm.tiers == 3 else self._gather_clients
            for served, _ in serve(
                self.state.served,
                step,
                partial(gather, worker),
                turns,
                self.draw,
                self._never_empty and not self.late.quorum,
            ):
                self.graph_status = worker.status
                self.state = replace(self.state, round=self.state.round + 1, served=served)
                yield self.state

    def received(self, state: State | None = None) -> Tensor:
        """What every client would receive if a round began now, or after `state`: (*lead, d)."""
        message = self.algorithm.cloud_message((state or self.state).served.state, self.members)
        if self.algorithm.tiers == 2:
            return message
        clients = self.task.lead[-1]
        return self.algorithm.edge_message(self.algorithm.edge_start(message, clients), clients)

    def spread_to_clients(self, model: Tensor) -> Tensor:
        """A model of each run, (runs?, d), for every client, (*lead, d), without a copy."""
        return spread_over(model, self.task.lead, self.runs)

    def _message_down(self) -> Tensor:
        """The first message to one member of the cloud, (runs?, ...): uploads are as long."""
        state = self.algorithm.cloud_start(self.initial, self.members)
        return self.algorithm.cloud_message(state, self.members)[..., 0, :]

    @property
    def client_stack(self) -> ClientStack:
        """All clients, as the algorithm sees them."""
        return ClientStack(
            algorithm=self.algorithm,
            task=self.task,
            ids=self.ids,
            links=Links(self.links),
            lost=self.lost,
            at_once=self.clients_at_once,
            runs=self.runs,
            never_empty=self._never_empty,
            aggregation=self.aggregation,
            factors=self.factors,
            schedule=self.schedule,
            secure=None if self.secure is None else Secure(self.secure, self._largest_sum),
            privacy=self.privacy,
        )

    @property
    def _never_empty(self) -> bool:
        """Whether every server gets a reply in every turn."""
        return self.lost is None and self._all_servers_have_clients and self.secure is None

    @property
    def _largest_sum(self) -> int:
        """Clients that one server adds up at most."""
        return self.sampled or self.members if self.algorithm.tiers == 2 else self.task.lead[-1]

    def _draw(self) -> Draw:
        """Which of the cloud's members count in a round: edges, or clients with two tiers."""
        seated = self.task.sizes > 0
        if self.algorithm.tiers == 2:
            return drawing(self.stream, self.sampled, self.ids, seated)
        edges = torch.arange(self.members, device=self.ids.device).expand(self.task.lead[:-1])
        return drawing(self.stream, self.sampled, edges, seated.any(-1))

    def _worker(self) -> AbstractContextManager[Worker]:
        """What computes the members' part of a round: this process, or what `worker_factory` makes."""
        if self.worker_factory is not None:
            return self.worker_factory(self)
        three_tiers = self.algorithm.tiers == 3
        work = partial(run_edge_rounds, self.client_stack) if three_tiers else self._client_steps
        return nullcontext(Recorder(work, self.initial.device, self._graph_obstacle()))

    def _graph_obstacle(self) -> str:
        """Why the members' part cannot be recorded as a CUDA graph, as far as that is known beforehand."""
        if not self.graphs:
            return "not asked for"
        if self.initial.device.type != "cuda":
            return f"the device is a {self.initial.device.type}"
        if self.lost is not None:
            return "which messages are lost is decided on the host"
        if self.algorithm.tiers == 3 and any(map(Links(self.links).coded_on_host, BELOW_EDGES)):
            return "messages between clients and edges are coded on the host"
        return ""

    def _send_down(self, served: Served, direction: Direction, present: Tensor | None) -> Tensor:
        """What the cloud's members receive of its message; what they then hold is part of the state."""
        message = self.algorithm.cloud_message(served.state, self.members)
        base = self.state.sent.get(direction, ())
        if not self.algorithm.federated:
            present = torch.zeros(message.shape[:-1], device=message.device)
        received, base = Links(self.links).send_down(message, direction, present, base, self.ledger)
        self.state = self.state.with_sent(direction, base)
        return received

    def _gather_edges(
        self, worker: Worker, served: Served, turn: int, drawn: Tensor | None
    ) -> tuple[Message, Tensor]:
        """Three tiers: all edges serve their clients for the edge rounds; what those drawn upload counts."""
        late = self.state.late
        idle = None if late is None else late.idle
        all_rounds = self.ledger
        if late is not None:
            self.ledger = Ledger()  # of this round only, for the link model's clock
        received = self._send_down(served, Direction.CLOUD_EDGE, idle)
        base = self.state.sent.get(Direction.EDGE_CLIENT, ())
        result: EdgeRoundsResult = worker(turn, received, served.statistics, self.state.clients, base)
        if idle is not None:
            result = of_idle(result, idle, base, self.state)
        for direction, entry in zip(BELOW_EDGES, result.traffic, strict=True):
            self.ledger.add(direction, entry)
        state = self.state.with_clients(result.clients).with_sent(Direction.EDGE_CLIENT, result.base)
        self.state = replace(state, edges=result.edges)
        # An edge weighs what its clients weighed in its last real step; zero if none answered all round.
        total = result.weights.sum(-1)
        weights = total if self.algorithm.weighting == "size" else (total > 0).to(total.dtype)
        if drawn is not None:
            weights = weights * drawn
        message = Message(self.algorithm.edge_upload(result.edges.state), result.edges.statistics)
        upload = Links(self.links).send_up(message, Direction.EDGE_CLOUD, received)
        if late is None or idle is None:
            self.ledger.add_messages(Direction.EDGE_CLOUD, upload.lengths, upload.nonzeros, weights)
            return upload.message, weights
        self.ledger.add_messages(Direction.EDGE_CLOUD, upload.lengths, upload.nonzeros, weights * idle)
        entries, self.ledger = self.ledger.close(), all_rounds
        for direction, entry in entries.items():
            self.ledger.add(direction, entry)
        assert self.path_seconds is not None, "the link model is the clock"
        under_way = Upload(upload.message, weights, received, self.path_seconds(entries))
        late, counted = late.with_uploads(self.late, under_way, turn).wait(self.late, turn)
        self.state = replace(self.state, late=late)
        return Message(late.moved_to(received, turn), late.statistics), counted

    def _gather_clients(
        self, worker: Worker, served: Served, turn: int, drawn: Tensor | None
    ) -> tuple[Message, Tensor]:
        """Two tiers: all clients, or those drawn, step; their uploads count."""
        received = self._send_down(served, Direction.CLOUD_CLIENT, drawn)
        result: StepResult = worker(turn, received, self.state.clients, drawn)
        stack, clock, up = self.client_stack, Clock(turn), Direction.CLIENT_CLOUD
        chosen = None if drawn is None else self._chosen(drawn)
        given = stack.step_input(received, self.state.clients)
        given = given if chosen is None else tree_map(chosen.pick, given)
        replies = stack.replies(given, result, clock, up)
        of_all = replies if chosen is None else self._put_back(chosen, replies)
        self.state = self.state.with_clients(of_all.clients)
        sent = of_all.weights if self.algorithm.federated else torch.zeros_like(of_all.weights)
        self.ledger.add_messages(up, of_all.delivery.lengths, of_all.delivery.nonzeros, sent)
        learnt = stack.add_up(given, replies)
        if learnt is not None:
            for direction, entry in ((up.down, learnt.down), (up, learnt.up)):
                self.ledger.add(direction, entry if chosen is None else tree_map(chosen.put_back, entry))
            return learnt.message, learnt.weights
        # A server without a members axis needs no rows of clients that were not drawn.
        counted = of_all if self.algorithm.state_per_member else replies
        return counted.delivery.message, counted.weights

    def _put_back(self, chosen: Drawn, replies: Replies) -> Replies:
        """The replies of those drawn as replies of all; the others sent nothing and keep what they had."""

        put = chosen.put_back
        message, lengths, nonzeros = replies.delivery
        if self.algorithm.state_per_member:
            message = Message(put(dense(message.model)), put(message.statistics))
        clients = tree_map(chosen.put, self.state.clients, replies.clients)
        return Replies(Delivery(message, put(lengths), put(nonzeros)), put(replies.weights), clients)

    def _client_steps(
        self, turn: int | Tensor, received: Tensor, clients: ClientState, drawn: Tensor | None
    ) -> StepResult:
        """Two tiers: the steps of all clients, or of those drawn."""
        if drawn is None:
            return self.client_stack.step(received, clients, Clock(turn))
        pick = self._chosen(drawn).pick
        return self.client_stack.map(pick).step(pick(received), tree_map(pick, clients), Clock(turn))

    def _chosen(self, drawn: Tensor) -> Drawn:
        return Drawn(drawn, self.runs, self.sampled)

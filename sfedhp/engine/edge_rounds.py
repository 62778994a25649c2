"""The edge rounds of one cloud round: every edge serves its clients, all edges at once."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import SliceWriter
from sfedhp.core.trees import keep, tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.client_stack import ClientStack
from sfedhp.engine.links import Base
from sfedhp.engine.noise import private_uploads
from sfedhp.engine.rounds import Message, Served, everybody, robust_uploads, serve, stepping
from sfedhp.engine.slices import slices
from sfedhp.engine.state import ClientState, State
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Entry, Ledger

BELOW_EDGES: Final = (Direction.EDGE_CLIENT, Direction.CLIENT_EDGE)


class EdgeRoundsResult(NamedTuple):
    """The result of the edge rounds."""

    edges: Served
    weights: Tensor  # (*lead,), weights of clients in the last edge round with a reply
    clients: ClientState
    base: Base  # of the messages down to clients
    traffic: tuple[Entry, ...]  # in the order of BELOW_EDGES


def run_edge_rounds(
    stack: ClientStack,
    turn: int | Tensor,
    received: Tensor,
    statistics: Tensor,
    clients: ClientState,
    base: Base,
) -> EdgeRoundsResult:
    """Run the edge rounds, in slices of edges if not all clients are computed at once.

    Edges are independent until the cloud's step. So the state of a slice stays in the processor's cache until
    its edges are done, and only then is it written into the state of all.

    Args:
        stack: the clients, (runs?, edges, clients).
        turn: the number of the cloud round.
        received: (runs?, edges, d), what the edges received from the cloud.
        statistics: (runs?, s), those of the cloud; they are kept where no client answers.
        clients: what the clients hold.
        base: as the last cloud round returned it.
    """
    count, members = stack.task.lead[-2:]
    width = max(stack.at_once // members, 1) if stack.at_once else count
    if width < count:
        whole = SliceWriter[EdgeRoundsResult](stack.runs, count, shared_anchors=False)
        for part in slices(stack.runs, count, width):
            own = tree_map(part.cut, (clients, base))
            result = run_edge_rounds(stack.map(part.cut), turn, part.cut(received), statistics, *own)
            whole.write(result, part.first)
        return whole.value
    algorithm, ledger = stack.algorithm, Ledger()

    def gather(served: Served, edge_round: int, _: Tensor | None) -> tuple[Message, Tensor]:
        nonlocal clients, base
        clock = Clock(turn, edge_round)
        messages, down = algorithm.edge_message(served.state, members), Direction.EDGE_CLIENT
        message, base = stack.links.send_down(messages, down, stack.task.sizes, base, ledger)
        if not algorithm.needs_personal_state and stack.lost is None:
            clients = ClientState((), clients.statistics)  # personal models of all clients take much memory
        result = stack.step(message, clients, clock)
        given = stack.step_input(message, clients)
        replies = stack.replies(given, result, clock, Direction.CLIENT_EDGE)
        clients, delivery = replies.clients, replies.delivery
        ledger.add_messages(Direction.CLIENT_EDGE, delivery.lengths, delivery.nonzeros, replies.weights)
        learnt = stack.add_up(given, replies)
        if learnt is None:
            return delivery.message, replies.weights
        for direction, entry in zip(BELOW_EDGES, (learnt.down, learnt.up), strict=True):
            ledger.add(direction, entry)
        return learnt.message, learnt.weights

    edges = Served(
        algorithm.edge_start(received, members), statistics.unsqueeze(-2).expand(*received.shape[:-1], -1)
    )
    robustly = robust_uploads(stack.aggregation, algorithm.edge_message)
    now = stack.schedule.apply(algorithm, Clock(turn))
    stream = stack.task.stream[..., 0]
    privately = private_uploads(stack.privacy, "edge", algorithm.edge_message, stream)
    step = stepping(now.edge_step, lambda edge_round: Clock(turn, edge_round), robustly, privately)
    last_weights = torch.zeros(stack.task.lead, dtype=received.dtype, device=received.device)
    rounds = range(algorithm.edge_rounds)
    for served, weights in serve(edges, step, gather, rounds, everybody, stack.never_empty):
        edges = served
        last_weights = weights if stack.never_empty else keep(weights.sum(-1) > 0, weights, last_weights)
    entries = ledger.close()
    traffic = tuple(entries[direction] for direction in BELOW_EDGES)
    return EdgeRoundsResult(edges, last_weights, clients, base, traffic)


def of_idle(result: EdgeRoundsResult, idle: Tensor, base: Base, before: State) -> EdgeRoundsResult:
    """The result for edges that were idle; edges that work on an older message keep their state.

    Args:
        result: of all edges.
        idle: (..., edges).
        base: of the messages down to clients, before.
        before: the state before.
    """
    edges = result.edges if before.edges is None else keep(idle, result.edges, before.edges)
    clients = keep(idle, result.clients, before.clients)
    held = base if isinstance(base, Tensor) else result.base
    base = keep(idle, result.base, held) if isinstance(result.base, Tensor) else result.base
    mask = idle.unsqueeze(-1)
    traffic = tuple(Entry(*(each * mask for each in entry)) for entry in result.traffic)
    return EdgeRoundsResult(edges, result.weights, clients, base, traffic)

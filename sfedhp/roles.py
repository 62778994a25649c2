"""Each role alone: a client, an edge and the cloud as on machines of their own, without leading axes.

The roles call the same functions of an algorithm and the same loop as the simulator; what differs is that
members answer one by one, each message through `carry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.rounds import Draw, Message, Served, everybody, serve, stepping
from sfedhp.tasks import Task
from sfedhp.types import Clock
from sfedhp.vectors import dense, keep

Carry = Callable[[Tensor], Tensor]  # what arrives of a message (d + s,)


@dataclass(frozen=True)
class Answer:
    """A member's upload, its statistics behind it, and what it weighs."""

    upload: Tensor
    weight: float


class Member(Protocol):
    """Whoever stands below a server."""

    def answer(self, received: Tensor, clock: Clock) -> Answer | None:
        """Reply to a message; None: it stays silent."""


@dataclass
class Client:
    """One client with its own data, its personal state and its running statistics."""

    algorithm: Algorithm
    task: Task  # no leading axes
    personal: Any
    statistics: Tensor  # (s,)
    silent: Callable[[Clock], bool] = lambda clock: False
    _asked: tuple[Clock, Any, Tensor] | None = field(default=None, init=False)

    def answer(self, received: Tensor, clock: Clock) -> Answer | None:
        """One client step. Asked again for the same clock it answers from what it held before."""
        if self.silent(clock):
            return None
        if self._asked is not None and self._asked[0] == clock:
            _, self.personal, self.statistics = self._asked
        self._asked = (clock, self.personal, self.statistics)
        task = replace(self.task, statistics=self.statistics)
        result = self.algorithm.client_step(received, self.personal, task, clock)
        assert task.statistics is not None
        self.personal, self.statistics = result.personal, task.statistics
        weight = float(self.task.sizes) if self.algorithm.weighting == "size" else 1.0
        return Answer(torch.cat([dense(result.upload), self.statistics]), weight)


@dataclass
class Edge:
    """An edge server with its clients: R edge rounds for every message from the cloud."""

    algorithm: Algorithm
    clients: Sequence[Member]
    tail: Tensor  # (s,), before anybody answered
    carry: Carry = lambda message: message
    served: Served | None = None  # after the last cloud round

    def answer(self, received: Tensor, clock: Clock) -> Answer | None:
        """Serve the clients for the edge rounds; silent where no client answered in any of them."""
        algorithm, turn = self.algorithm, clock.cloud_round
        start = Served(algorithm.edge_start(received, len(self.clients)), self.tail)

        def gather(served: Served, edge_round: int, _: Tensor | None) -> tuple[Message, Tensor]:
            messages = algorithm.edge_message(served.state, len(self.clients))
            return collect(self.clients, messages, Clock(turn, edge_round), self.tail, self.carry)

        step = stepping(algorithm.edge_step, lambda edge_round: Clock(turn, edge_round))
        last = torch.zeros(len(self.clients), dtype=received.dtype)
        for served, weights in serve(start, step, gather, range(algorithm.edge_rounds), everybody):
            self.served, last = served, keep(weights.sum(-1) > 0, weights, last)
        assert self.served is not None
        total = float(last.sum())
        if not total:
            return None
        upload = torch.cat([algorithm.edge_upload(self.served.state), self.served.tail])
        return Answer(upload, total if algorithm.weighting == "size" else 1.0)


@dataclass
class Cloud:
    """The cloud with its members: edges, or clients where the method has two tiers."""

    algorithm: Algorithm
    members: Sequence[Member]
    initial: Tensor  # (d,)
    tail: Tensor  # (s,)
    draw: Draw = everybody
    carry: Carry = lambda message: message

    def __post_init__(self) -> None:
        self.served = Served(self.algorithm.cloud_start(self.initial, len(self.members)), self.tail)

    def run(self, rounds: int) -> Iterator[Served]:
        """Cloud rounds; yields what the cloud holds after each."""
        algorithm, count = self.algorithm, len(self.members)

        def gather(served: Served, turn: int, drawn: Tensor | None) -> tuple[Message, Tensor]:
            messages = algorithm.cloud_message(served.state, count)
            # All edges train and those drawn count; of clients only those drawn are asked.
            asked = None if algorithm.tiers == 3 else drawn
            uploads, weights = collect(self.members, messages, Clock(turn), self.tail, self.carry, asked)
            return uploads, weights if drawn is None else weights * drawn

        step = stepping(algorithm.cloud_step, Clock)
        for served, _ in serve(self.served, step, gather, range(rounds), self.draw):
            self.served = served
            yield served


def collect(
    members: Sequence[Member],
    messages: Tensor,
    clock: Clock,
    tail: Tensor,
    carry: Carry,
    asked: Tensor | None = None,
) -> tuple[Message, Tensor]:
    """Ask the members one by one. Whoever is silent weighs zero, and its row is never read."""
    answers: list[Answer | None] = []
    for index, member in enumerate(members):
        wanted = asked is None or bool(asked[index])
        answers.append(member.answer(carry(messages[index]), clock) if wanted else None)
    weights = torch.tensor(
        [0.0 if reply is None else reply.weight for reply in answers], dtype=messages.dtype
    )
    size = messages.shape[-1]
    rows = messages.new_full((len(members), size + len(tail)), torch.nan)
    for index, reply in enumerate(answers):
        if reply is not None:
            rows[index] = carry(reply.upload)
    return Message(rows[:, :size], rows[:, size:]), weights

"""Each role alone: a client, an edge and the cloud as on machines of their own, without leading axes.

The roles call the same functions of an algorithm and the same loop as the simulator; what differs is how they
ask: members in memory answer one by one, each message through `carry`; those on other machines are asked all
at once (`Members`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm
from sfedhp.core.factored import dense
from sfedhp.core.trees import keep
from sfedhp.core.types import Clock
from sfedhp.engine.rounds import Draw, Message, Served, everybody, serve, stepping
from sfedhp.nn.task import Task

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


class Members(Protocol):
    """All who stand below a server, asked together."""

    def __len__(self) -> int: ...

    def ask(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Answer | None]:
        """What each replied to its row of the messages; None: silent, or not asked (`asked`: None is all)."""


@dataclass
class Client:
    """One client with its own data, its personal state and its running statistics."""

    algorithm: Algorithm
    task: Task  # no leading axes
    personal: Any
    statistics: Tensor  # (s,)
    silent: Callable[[Clock], bool] = lambda clock: False
    before: tuple[Clock, Any, Tensor] | None = field(default=None, init=False)  # the last clock, what it held

    def answer(self, received: Tensor, clock: Clock) -> Answer | None:
        """One client step. Asked again for the same clock it answers from what it held before."""
        if self.silent(clock):
            return None
        if self.before is not None and self.before[0] == clock:
            _, self.personal, self.statistics = self.before
        self.before = (clock, self.personal, self.statistics)
        task = replace(self.task, statistics=self.statistics)
        result = self.algorithm.client_step(received, self.personal, task, clock)
        assert task.statistics is not None
        self.personal, self.statistics = result.personal, task.statistics
        weight = float(self.task.sizes) if self.algorithm.weighting == "size" else 1.0
        return Answer(torch.cat([dense(result.upload), self.statistics]), weight)


class Progress(NamedTuple):
    """How far an edge is within a cloud round."""

    done: int  # edge rounds
    served: Served
    last: Tensor  # (members,), what the clients weighed in the last real step


@dataclass
class Edge:
    """An edge server with its clients: R edge rounds for every message from the cloud."""

    algorithm: Algorithm
    clients: Sequence[Member] | Members
    statistics: Tensor  # (s,), before anybody answered
    carry: Carry = lambda message: message
    served: Served | None = None  # after the last cloud round

    def answer(self, received: Tensor, clock: Clock) -> Answer | None:
        """Serve the clients for the edge rounds; silent where no client answered in any of them."""
        start = self.begin(received)
        return self.conclude([start, *self.run(start, clock)][-1])

    def begin(self, received: Tensor) -> Progress:
        """The state at the start of a cloud round."""
        members = len(self.clients)
        start = Served(self.algorithm.edge_start(received, members), self.statistics)
        return Progress(0, start, torch.zeros(members, dtype=received.dtype))

    def run(self, progress: Progress, clock: Clock) -> Iterator[Progress]:
        """The edge rounds that are left; yields how far it is after each."""
        algorithm, turn, members = self.algorithm, clock.cloud_round, len(self.clients)
        asked = together(self.clients, self.carry)

        def gather(served: Served, edge_round: int, _: Tensor | None) -> tuple[Message, Tensor]:
            messages = algorithm.edge_message(served.state, members)
            return collect(asked, messages, Clock(turn, edge_round), self.statistics)

        step = stepping(algorithm.edge_step, lambda edge_round: Clock(turn, edge_round))
        rounds = range(progress.done, algorithm.edge_rounds)
        for served, weights in serve(progress.served, step, gather, rounds, everybody):
            last = keep(weights.sum(-1) > 0, weights, progress.last)
            progress = Progress(progress.done + 1, served, last)
            yield progress

    def conclude(self, progress: Progress) -> Answer | None:
        """What the cloud is told after the edge rounds; nothing where no client answered in any of them."""
        algorithm, self.served = self.algorithm, progress.served
        total = float(progress.last.sum())
        if not total:
            return None
        upload = torch.cat([algorithm.edge_upload(self.served.state), self.served.statistics])
        return Answer(upload, total if algorithm.weighting == "size" else 1.0)


@dataclass
class Cloud:
    """The cloud with its members: edges, or clients where the method has two tiers."""

    algorithm: Algorithm
    members: Sequence[Member] | Members
    initial: Tensor  # (d,)
    statistics: Tensor  # (s,)
    draw: Draw = everybody
    carry: Carry = lambda message: message

    def __post_init__(self) -> None:
        self.served = Served(self.algorithm.cloud_start(self.initial, len(self.members)), self.statistics)

    def run(self, rounds: int, first: int = 0) -> Iterator[Served]:
        """Cloud rounds from the first on; yields what the cloud holds after each."""
        algorithm, count = self.algorithm, len(self.members)
        members = together(self.members, self.carry)

        def gather(served: Served, turn: int, drawn: Tensor | None) -> tuple[Message, Tensor]:
            messages = algorithm.cloud_message(served.state, count)
            # All edges train and those drawn count; of clients only those drawn are asked.
            asked = None if algorithm.tiers == 3 else drawn
            uploads, weights = collect(members, messages, Clock(turn), self.statistics, asked)
            return uploads, weights if drawn is None else weights * drawn

        step = stepping(algorithm.cloud_step, Clock)
        for served, _ in serve(self.served, step, gather, range(first, rounds), self.draw):
            self.served = served
            yield served


@dataclass(frozen=True)
class InTurn:
    """Members in memory, asked one by one, each message through `carry`."""

    members: Sequence[Member]
    carry: Carry

    def __len__(self) -> int:
        return len(self.members)

    def ask(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Answer | None]:
        """What each replied."""
        answers: list[Answer | None] = []
        for index, member in enumerate(self.members):
            wanted = asked is None or bool(asked[index])
            reply = member.answer(self.carry(messages[index]), clock) if wanted else None
            answers.append(None if reply is None else replace(reply, upload=self.carry(reply.upload)))
        return answers


def together(members: Sequence[Member] | Members, carry: Carry) -> Members:
    """Members who are asked together; a mere sequence of them is asked in turn."""
    return InTurn(members, carry) if isinstance(members, Sequence) else members


def collect(
    members: Members, messages: Tensor, clock: Clock, statistics: Tensor, asked: Tensor | None = None
) -> tuple[Message, Tensor]:
    """Ask the members and stack their uploads. Whoever is silent weighs zero, and its row is never read."""
    answers = members.ask(messages, clock, asked)
    weights = torch.tensor(
        [0.0 if reply is None else reply.weight for reply in answers], dtype=messages.dtype
    )
    size = messages.shape[-1]
    rows = messages.new_full((len(members), size + len(statistics)), torch.nan)
    for index, reply in enumerate(answers):
        if reply is not None:
            rows[index] = reply.upload
    return Message(rows[:, :size], rows[:, size:]), weights

"""A client, an edge and the cloud as separate roles, without the leading axes of a stack.

The roles call the same functions of an algorithm and the same loop as the simulator. A server sends requests
to its `Members`: in a deployment, they are on other machines and work in parallel (`MemberGroup` in
`sfedhp.deploy`); in memory, they reply one after the other (`InMemoryMembers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm, step_clients
from sfedhp.algorithms.schedule import CONSTANT, ScheduleOptions
from sfedhp.core.aggregation import MEAN, AggregationOptions, Cut
from sfedhp.core.factored import dense
from sfedhp.core.noise import KEYED, NoiseSource, Normals
from sfedhp.core.trees import keep, tensors_of
from sfedhp.core.types import Clock
from sfedhp.engine.noise import private_result, private_uploads, with_secret_draws
from sfedhp.engine.rounds import Draw, Message, Served, everybody, robust_uploads, serve, stepping
from sfedhp.nn.task import Task
from sfedhp.privacy.options import NOT_PRIVATE, PrivacyOptions

Carry = Callable[[Tensor], Tensor]  # a message (d + s,) -> what arrives of it
OnCut = Callable[[Cut], None]  # called with what a robust rule cut of each member's upload
_NO_STREAM: Final = torch.zeros((), dtype=torch.int64)


@dataclass(frozen=True)
class Reply:
    """A member's reply: its upload, then the running statistics, and its weight."""

    upload: Tensor  # (d + s,)
    weight: float


class Member(Protocol):
    """A client below an edge, or an edge or a client below the cloud."""

    def reply(self, received: Tensor, clock: Clock) -> Reply | None:
        """The reply to a message (d,); None: there is none."""


class Members(Protocol):
    """All members of a server."""

    def __len__(self) -> int: ...

    def request(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Reply | None]:
        """The reply of each member to its message; None if there is none.

        Args:
            messages: (members, d).
            clock: of the request.
            asked: (members,) bool, to which of them the request goes; None: to all.
        """


class Before(NamedTuple):
    """The state of a client before a step."""

    clock: Clock  # of the step
    personal: Any
    statistics: Tensor


@dataclass
class Client:
    """One client with its own data, its personal state and its running statistics."""

    algorithm: Algorithm
    task: Task  # no leading axes
    personal: Any
    statistics: Tensor  # (s,)
    silent: Callable[[Clock], bool] = lambda clock: False
    schedule: ScheduleOptions = CONSTANT
    privacy: PrivacyOptions = NOT_PRIVATE
    noise: NoiseSource | None = None  # None: keyed, as in a simulation
    before: Before | None = field(default=None, init=False)  # before the last step

    def reply(self, received: Tensor, clock: Clock) -> Reply | None:
        """One client step. A request for the same clock as the last one repeats that step."""
        if self.silent(clock):
            return None
        if self.before is not None and self.before.clock == clock:
            _, self.personal, self.statistics = self.before
        self.before = Before(clock, self.personal, self.statistics)
        task = replace(self.task, statistics=self.statistics)
        algorithm = self.schedule.apply(self.algorithm, clock)
        normals: Normals = KEYED
        if self.privacy.active and self.privacy.tier == "client":
            # The same request gets the same noise only if the client's state is unchanged.
            held = tensors_of((self.personal, self.statistics))
            normals = (self.noise or KEYED).bound_to(received, torch.tensor(tuple(clock)), *held)
            task = with_secret_draws(task, normals)
        with task.training():
            result = step_clients(algorithm, received, self.personal, task, clock)
        result = private_result(self.privacy, result, received, task, clock, normals)
        assert task.statistics is not None
        self.personal, self.statistics = result.personal, task.statistics
        weight = float(self.task.sizes) if self.algorithm.weighting == "size" else 1.0
        return Reply(torch.cat([dense(result.upload), self.statistics]), weight)


class EdgeProgress(NamedTuple):
    """The progress of an edge within a cloud round."""

    rounds_done: int  # edge rounds
    served: Served
    weights: Tensor  # (members,), weights of the clients in the last round with a reply


@dataclass
class Edge:
    """An edge server with its clients: R edge rounds for every message from the cloud."""

    algorithm: Algorithm
    clients: Sequence[Member] | Members
    statistics: Tensor  # (s,), the initial running statistics
    carry: Carry = lambda message: message
    served: Served | None = None  # after the last cloud round
    aggregation: AggregationOptions = MEAN
    on_cut: OnCut = lambda cut: None
    schedule: ScheduleOptions = CONSTANT
    privacy: PrivacyOptions = NOT_PRIVATE
    noise: NoiseSource | None = None  # None: keyed, as in a simulation
    stream: Tensor = _NO_STREAM  # the key of its noise

    def reply(self, received: Tensor, clock: Clock) -> Reply | None:
        """All edge rounds of a cloud round; no reply where no client replied in any of them."""
        *_, last = self.run(self.begin(received), clock)
        return self.conclude(last)

    def begin(self, received: Tensor) -> EdgeProgress:
        """The progress of an edge at the start of a cloud round."""
        members = len(self.clients)
        start = Served(self.algorithm.edge_start(received, members), self.statistics)
        return EdgeProgress(0, start, torch.zeros(members, dtype=received.dtype))

    def run(self, progress: EdgeProgress, clock: Clock) -> Iterator[EdgeProgress]:
        """The edge rounds that are left; yields the progress after each."""
        algorithm, turn, members = self.algorithm, clock.cloud_round, len(self.clients)
        clients = as_members(self.clients, self.carry)

        def gather(served: Served, edge_round: int, _: Tensor | None) -> tuple[Message, Tensor]:
            messages = algorithm.edge_message(served.state, members)
            return collect(clients, messages, Clock(turn, edge_round), self.statistics)

        robustly = robust_uploads(self.aggregation, algorithm.edge_message, self.on_cut)
        now = self.schedule.apply(algorithm, clock)
        privately = private_uploads(self.privacy, "edge", algorithm.edge_message, self.stream, self.noise)
        step = stepping(now.edge_step, lambda edge_round: Clock(turn, edge_round), robustly, privately)
        rounds = range(progress.rounds_done, algorithm.edge_rounds)
        for served, weights in serve(progress.served, step, gather, rounds, everybody):
            weights = keep(weights.sum(-1) > 0, weights, progress.weights)
            progress = EdgeProgress(progress.rounds_done + 1, served, weights)
            yield progress

    def conclude(self, progress: EdgeProgress) -> Reply | None:
        """The reply to the cloud after the edge rounds; None if no client replied in any of them."""
        algorithm, self.served = self.algorithm, progress.served
        total = float(progress.weights.sum())
        if not total:
            return None
        upload = torch.cat([algorithm.edge_upload(self.served.state), self.served.statistics])
        return Reply(upload, total if algorithm.weighting == "size" else 1.0)


@dataclass
class Cloud:
    """The cloud with its members: edges, or clients where the method has two tiers."""

    algorithm: Algorithm
    members: Sequence[Member] | Members
    initial: Tensor  # (d,)
    statistics: Tensor  # (s,)
    draw: Draw = everybody
    carry: Carry = lambda message: message
    aggregation: AggregationOptions = MEAN
    on_cut: OnCut = lambda cut: None
    schedule: ScheduleOptions = CONSTANT
    privacy: PrivacyOptions = NOT_PRIVATE
    noise: NoiseSource | None = None  # None: keyed, as in a simulation
    stream: Tensor = _NO_STREAM  # the key of its noise

    def __post_init__(self) -> None:
        self.served = Served(self.algorithm.cloud_start(self.initial, len(self.members)), self.statistics)

    def run(self, rounds: int, first: int = 0) -> Iterator[Served]:
        """Cloud rounds from `first` to `rounds`; yields what the cloud holds after each."""
        algorithm, count = self.algorithm, len(self.members)
        members = as_members(self.members, self.carry)

        def gather(served: Served, turn: int, drawn: Tensor | None) -> tuple[Message, Tensor]:
            messages = algorithm.cloud_message(served.state, count)
            # All edges train, and those drawn count; of clients only those drawn train.
            asked = None if algorithm.tiers == 3 else drawn
            uploads, weights = collect(members, messages, Clock(turn), self.statistics, asked)
            return uploads, weights if drawn is None else weights * drawn

        robustly = robust_uploads(self.aggregation, algorithm.cloud_message, self.on_cut)
        privately = private_uploads(self.privacy, "cloud", algorithm.cloud_message, self.stream, self.noise)
        step = stepping(self.schedule.cloud_step(algorithm), Clock, robustly, privately)
        for served, _ in serve(self.served, step, gather, range(first, rounds), self.draw):
            self.served = served
            yield served


@dataclass(frozen=True)
class InMemoryMembers:
    """Members in this process, which reply one after the other; each message goes through `carry`."""

    members: Sequence[Member]
    carry: Carry

    def __len__(self) -> int:
        return len(self.members)

    def request(self, messages: Tensor, clock: Clock, asked: Tensor | None) -> list[Reply | None]:
        """Ask the members one after the other; see `Members.request`."""
        replies: list[Reply | None] = []
        for index, member in enumerate(self.members):
            takes_part = asked is None or bool(asked[index])
            reply = member.reply(self.carry(messages[index]), clock) if takes_part else None
            replies.append(None if reply is None else replace(reply, upload=self.carry(reply.upload)))
        return replies


def as_members(members: Sequence[Member] | Members, carry: Carry) -> Members:
    """`Members` of a server; a sequence becomes `InMemoryMembers`."""
    return InMemoryMembers(members, carry) if isinstance(members, Sequence) else members


def collect(
    members: Members, messages: Tensor, clock: Clock, statistics: Tensor, asked: Tensor | None = None
) -> tuple[Message, Tensor]:
    """Request replies and stack them: uploads (members, d), statistics (members, s) and weights (members,).

    A member without a reply weighs zero; its row is NaN and never read.
    """
    replies = members.request(messages, clock, asked)
    weights = torch.tensor(
        [0.0 if reply is None else reply.weight for reply in replies], dtype=messages.dtype
    )
    size = messages.shape[-1]
    rows = messages.new_full((len(members), size + len(statistics)), torch.nan)
    for index, reply in enumerate(replies):
        if reply is not None:
            rows[index] = reply.upload
    return Message(rows[:, :size], rows[:, size:]), weights

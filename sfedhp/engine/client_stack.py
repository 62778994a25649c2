"""All clients of a simulation, or some of them, computed at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm, step_clients
from sfedhp.algorithms.schedule import CONSTANT, ScheduleOptions
from sfedhp.core.aggregation import MEAN, AggregationOptions
from sfedhp.core.factored import Factored, SliceWriter, dense
from sfedhp.core.scalars import on_device
from sfedhp.core.trees import keep, tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.links import Delivery, Links
from sfedhp.engine.noise import private_result
from sfedhp.engine.rounds import Message
from sfedhp.engine.secure_sum import Secure, Sum, Uploads
from sfedhp.engine.slices import slices
from sfedhp.engine.state import ClientState
from sfedhp.nn.task import Task
from sfedhp.privacy.options import NOT_PRIVATE, PrivacyOptions
from sfedhp.wire.direction import Direction

Lost = Callable[[Clock, Tensor], Tensor]  # (clock, client ids) -> bool, whose replies are lost


class StepInput(NamedTuple):
    """The input of a step of the clients, and their ids: a tree that can be sliced to some of them."""

    received: Tensor  # (*lead, d)
    clients: ClientState  # what they hold before the step
    sizes: Tensor  # (*lead,), their rows
    ids: Tensor  # (*lead,)
    factors: Tensor | tuple[()] = ()  # (*lead,), the factor of each one's change; (): none


class StepResult(NamedTuple):
    """The result of the clients' steps: uploads for their server, and their new states."""

    model: Tensor | Factored
    clients: ClientState


class Replies(NamedTuple):
    """The clients' replies as they arrive at the server."""

    delivery: Delivery
    weights: Tensor  # (*lead,); 0: no reply
    clients: ClientState  # what they keep


@dataclass(frozen=True)
class ClientStack:
    """Clients stacked over (runs?, edges, clients), or (runs?, clients) with two tiers."""

    algorithm: Algorithm
    task: Task
    ids: Tensor  # (*lead,)
    links: Links
    lost: Lost | None  # None: every reply arrives
    at_once: int  # clients of a run computed together; 0: all
    runs: int  # leading axes that are runs: 0 or 1
    never_empty: bool  # every server gets a reply in every turn
    aggregation: AggregationOptions = MEAN  # of the servers
    factors: Tensor | None = None  # (*lead,), factors of malicious clients' changes; None: none
    schedule: ScheduleOptions = CONSTANT  # of the rates
    secure: Secure | None = None  # how uploads are masked; None: servers read each
    privacy: PrivacyOptions = NOT_PRIVATE  # of uploads

    def map(self, function: Callable[[Tensor], Tensor]) -> ClientStack:
        """The same function applied to every tensor of the stack: a slice, a choice, a copy."""
        factors = None if self.factors is None else function(self.factors)
        return replace(self, task=self.task.map(function), ids=function(self.ids), factors=factors)

    def to(self, device: torch.device) -> ClientStack:
        """The same stack on a device; on another device, with its own copy of the network."""
        if self.ids.device == device:
            return self
        moved = self.map(lambda tensor: tensor.to(device))
        task = replace(moved.task, network=moved.task.network.to(device))
        return replace(moved, task=task, algorithm=on_device(self.algorithm, device))

    def step_input(self, received: Tensor, clients: ClientState) -> StepInput:
        """The input of a step of all clients of the stack."""
        factors = () if self.factors is None else self.factors
        return StepInput(received, clients, self.task.sizes, self.ids, factors)

    def step(self, received: Tensor, clients: ClientState, clock: Clock) -> StepResult:
        """`client_step` of all clients, slice by slice where not all are computed at once."""
        task = replace(self.task, statistics=clients.statistics)
        axis, total = len(task.lead) - 1, task.lead[-1]
        if not 0 < self.at_once < total:
            return self._step(received, clients, task, clock)
        whole: SliceWriter[Any] = SliceWriter(axis, total)
        for part in slices(axis, total, self.at_once):
            own = tree_map(part.cut, clients)
            model, kept = self._step(part.cut(received), own, task.map(part.cut), clock)
            same = model is kept.personal  # a model that is sent and kept is written once
            whole.write((() if same else model, kept), part.first)
        model, kept = whole.value
        return StepResult(kept.personal if same else model, kept)

    def replies(self, given: StepInput, result: StepResult, clock: Clock, direction: Direction) -> Replies:
        """The replies of the clients to the input of their step, as they arrive.

        A lost reply has weight zero, and its client keeps its previous state.
        """
        present = given.sizes > 0
        clients = result.clients
        if self.lost is not None:
            present = present & ~self.lost(clock, given.ids)
            kept = (keep(present, *pair) for pair in zip(clients, given.clients, strict=True))
            clients = ClientState(*kept)
        weights = present.to(given.received.dtype)
        if self.algorithm.weighting == "size":
            weights = weights * given.sizes
        model = result.model
        if isinstance(given.factors, Tensor):
            factors = given.factors.unsqueeze(-1).to(given.received.dtype)
            model = given.received + factors * (dense(model) - given.received)
        message = Message(model, clients.statistics)
        if self.secure is None:
            delivery = self.links.send_up(message, direction, given.received)
        else:
            form = self.secure.form(given.received.shape[-1], clients.statistics.shape[-1])
            delivery = self.links.send_masked(message, direction, form.length)
        return Replies(delivery, weights, clients)

    def add_up(self, given: StepInput, replies: Replies) -> Sum | None:
        """The sums that servers learn from masked replies; None if they read each reply."""
        if self.secure is None:
            return None
        present = given.sizes > 0
        invited = given.sizes if self.algorithm.weighting == "size" else present
        uploads = Uploads(replies.delivery.message, replies.weights, given.received, invited)
        return self.secure.add_up(uploads)

    def _step(self, received: Tensor, clients: ClientState, task: Task, clock: Clock) -> StepResult:
        algorithm = self.schedule.apply(self.algorithm, clock)
        with task.training():
            result = step_clients(algorithm, received, clients.personal, task, clock)
        result = private_result(self.privacy, result, received, task, clock)
        assert task.statistics is not None, "the engine lends statistics for every step"
        return StepResult(result.upload, ClientState(result.personal, task.statistics))

"""Late edges of a simulation, which work for longer than a round takes; the link model is the clock."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import dense
from sfedhp.core.late import LateOptions, as_change_of, late_weight
from sfedhp.core.trees import keep
from sfedhp.engine.rounds import Message


class Upload(NamedTuple):
    """The uploads of edges in a round, and the time of all messages on each edge's path."""

    message: Message
    weights: Tensor  # (..., edges)
    received: Tensor  # (..., edges, d), the cloud's message before
    seconds: Tensor  # (..., edges), of all messages on the edge's path


class Late(NamedTuple):
    """The last upload of each edge, in transit or arrived, and the time."""

    model: Tensor  # (..., edges, d)
    sent: Tensor  # (..., edges, d), what the edge had received before
    statistics: Tensor  # (..., edges, s)
    weights: Tensor  # (..., edges)
    started: Tensor  # (..., edges), the round in which the edge began to work on it
    arrival: Tensor  # (..., edges), seconds, when it arrives
    clock: Tensor  # (...), seconds since the start

    @property
    def idle(self) -> Tensor:
        """Which edges (..., edges) have delivered, and take part in the next round."""
        return self.arrival <= self.clock.unsqueeze(-1)

    def with_uploads(self, options: LateOptions, upload: Upload, turn: int) -> Late:
        """Add the uploads of the edges that were idle, in transit from now on.

        Args:
            options: which edges are slow, and by what factor.
            upload: of all edges; those that are not idle keep their last one.
            turn: the number of the cloud round.
        """
        slow = torch.arange(upload.seconds.shape[-1], device=upload.seconds.device) < options.slow_edges
        seconds = torch.where(slow, options.slow_factor * upload.seconds, upload.seconds)
        idle = self.idle
        return self._replace(
            model=keep(idle, dense(upload.message.model), self.model),
            sent=keep(idle, upload.received, self.sent),
            statistics=keep(idle, upload.message.statistics, self.statistics),
            weights=keep(idle, upload.weights, self.weights),
            started=keep(idle, torch.full_like(self.started, turn), self.started),
            arrival=keep(idle, self.clock.unsqueeze(-1) + seconds, self.arrival),
        )

    def moved_to(self, message: Tensor, turn: int) -> Tensor:
        """The uploads (..., edges, d); those of earlier rounds as changes of what the cloud would send now.

        Args:
            message: (..., edges, d), what the cloud sends in this round.
            turn: the number of the cloud round.
        """
        old = (self.started < turn).unsqueeze(-1)
        return torch.where(old, as_change_of(message, self.model, self.sent), self.model)

    def wait(self, options: LateOptions, turn: int) -> tuple[Late, Tensor]:
        """Wait for a quorum of this round's uploads; also each edge's weight, smaller for older uploads.

        Older uploads that arrive meanwhile count too. If fewer edges began than the quorum, it waits for all.

        Args:
            options: the quorum, and what is left of a weight for each round of age.
            turn: the number of the cloud round.
        """
        fresh = self.started == turn
        needed = fresh.sum(-1, keepdim=True).clamp_max(options.quorum)
        ranked = torch.where(fresh, self.arrival, torch.inf).sort(-1).values
        clock = ranked.gather(-1, (needed - 1).clamp_min(0)).squeeze(-1)
        # Uploads that arrived before this round were counted then.
        arrived = (self.arrival > self.clock.unsqueeze(-1)) & (self.arrival <= clock.unsqueeze(-1))
        age = (turn - self.started).clamp_min(0).to(self.weights.dtype)
        weights = torch.where(arrived, late_weight(self.weights, options.decay, age), 0.0)
        return self._replace(clock=clock), weights


def at_start(initial: Tensor, statistics: Tensor, edges: int) -> Late:
    """Before the first round: every edge is idle.

    Args:
        initial: (..., d).
        statistics: (..., s).
        edges: how many.
    """
    lead, device = (*initial.shape[:-1], edges), initial.device
    return Late(
        initial.new_zeros(*lead, initial.shape[-1]),
        initial.new_zeros(*lead, initial.shape[-1]),
        statistics.new_zeros(*lead, statistics.shape[-1]),
        initial.new_zeros(lead),
        torch.full(lead, -1, dtype=torch.int64, device=device),
        torch.zeros(lead, dtype=torch.float64, device=device),
        torch.zeros(lead[:-1], dtype=torch.float64, device=device),
    )

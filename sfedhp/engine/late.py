"""Edges of a simulation that work for longer than a round takes: the link model is the clock."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.late import LateOptions


class Late(NamedTuple):
    """The last upload of each edge, on its way or arrived, and the time."""

    model: Tensor  # (..., edges, d)
    statistics: Tensor  # (..., edges, s)
    weights: Tensor  # (..., edges)
    started: Tensor  # (..., edges), the round in which the edge began to work on it
    arrival: Tensor  # (..., edges), seconds, when it arrives
    clock: Tensor  # (...), seconds since the start

    @property
    def idle(self) -> Tensor:
        """Which edges (..., edges) have delivered, and take part in the next round."""
        return self.arrival <= self.clock.unsqueeze(-1)

    def wait(self, options: LateOptions, turn: int) -> tuple[Late, Tensor]:
        """Wait until a quorum of uploads has arrived; what each edge then weighs, less the older it is.

        Args:
            options: the quorum, and what is left of a weight for each round of age.
            turn: the number of the cloud round.
        """
        on_the_way = torch.where(self.arrival > self.clock.unsqueeze(-1), self.arrival, torch.inf)
        quorum = min(options.quorum, self.arrival.shape[-1])
        # Those that are idle already delivered in an earlier round; fewer may be on the way than the quorum.
        ranked = on_the_way.sort(-1).values
        waited = torch.where(ranked.isfinite(), ranked, -torch.inf)[..., :quorum].amax(-1)
        clock = torch.maximum(self.clock, waited)
        arrived = on_the_way <= clock.unsqueeze(-1)
        age = (turn - self.started).clamp_min(0).to(self.weights.dtype)
        factor = torch.where(age > 0, options.decay**age, 1.0)
        weights = torch.where(arrived, self.weights * factor, 0.0)
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
        statistics.new_zeros(*lead, statistics.shape[-1]),
        initial.new_zeros(lead),
        torch.full(lead, -1, dtype=torch.int64, device=device),
        torch.zeros(lead, dtype=torch.float64, device=device),
        torch.zeros(lead[:-1], dtype=torch.float64, device=device),
    )

"""Schedules: how the rates of a method change over the cloud rounds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, Literal, TypeVar

import torch
from torch import Tensor

from sfedhp.algorithms.base import Algorithm, Upload
from sfedhp.core.options import Bounds, Count, CountOrOff, Help
from sfedhp.core.types import Clock

Method = TypeVar("Method", bound=Algorithm)
CloudStep = Callable[[Any, Upload, Tensor, Clock], Any]


@dataclass(frozen=True)
class ScheduleOptions:
    """The [schedule] section: the factor of the learning rates in each cloud round.

    It multiplies the fields that `Algorithm.scheduled_rates` names. t is counted from the end of the warm-up:

        step:    factor^⌊t/every⌋
        cosine:  end + (1 − end) (1 + cos(π t/T))/2, T rounds from the warm-up to the end of the schedule
    """

    kind: Annotated[
        Literal["constant", "step", "cosine"],
        Help("how rates fall over cloud rounds: not at all, in steps, or along a cosine"),
    ] = "constant"
    warmup: Annotated[CountOrOff, Help("first rounds, in which rates rise linearly to their full value")] = 0
    every: Annotated[Count, Help("step: rounds between two reductions")] = 100
    factor: Annotated[
        float, Bounds(0, 1, exclusive=True), Help("step: what each reduction multiplies rates by")
    ] = 0.1
    end: Annotated[float, Bounds(0, 1), Help("cosine: share of the rates that is left at the end")] = 0.0
    rounds: Annotated[CountOrOff, Help("cosine: round of the end; 0: the last one of the run")] = 0

    @property
    def active(self) -> bool:
        """Whether the learning rates change over the rounds."""
        return self.kind != "constant" or self.warmup > 0

    def resolved(self, rounds: int) -> ScheduleOptions:
        """The schedule of a run of this many rounds; a run that is resumed with more rounds keeps it."""
        return replace(self, rounds=rounds) if self.kind == "cosine" and not self.rounds else self

    def share(self, turn: int | Tensor) -> float | Tensor:
        """The share of the rates in a cloud round, counted from 0; a tensor where the round is one."""
        if isinstance(turn, Tensor):  # in a CUDA graph, which cannot ask the device for its number
            rising = (turn + 1).double() / max(self.warmup, 1)
            return torch.where(turn < self.warmup, rising, self._falling(turn))
        return (turn + 1) / self.warmup if turn < self.warmup else float(self._falling(torch.tensor(turn)))

    def apply(self, algorithm: Method, clock: Clock) -> Method:
        """The method with the learning rates of this cloud round."""
        if not self.active:
            return algorithm
        share, now = self.share(clock.cloud_round), copy.copy(algorithm)
        # Without a check of the options: a share may be 0, or a tensor.
        vars(now).update({name: getattr(algorithm, name) * share for name in scheduled_rates(algorithm)})
        return now

    def cloud_step(self, algorithm: Algorithm) -> CloudStep:
        """The cloud's step of a method, in each round with the rates of that round."""
        if not self.active:
            return algorithm.cloud_step
        return lambda state, uploads, weights, clock: self.apply(algorithm, clock).cloud_step(
            state, uploads, weights, clock
        )

    def _falling(self, turn: Tensor) -> Tensor:
        """The share from the end of the warm-up on, in float64."""
        since = (turn - self.warmup).clamp_min(0).double()
        if self.kind == "step":
            return self.factor ** torch.div(since, self.every, rounding_mode="floor")
        if self.kind == "cosine":
            length = max(self.rounds - self.warmup, 1)
            angle = math.pi * (since / length).clamp_max(1.0)
            return self.end + (1 - self.end) * (1 + torch.cos(angle)) / 2
        return torch.ones_like(since)


CONSTANT: Final = ScheduleOptions()


def scheduled_rates(algorithm: Algorithm) -> list[str]:
    """The names of a method's rates that a schedule multiplies."""
    options = {option.name for option in fields(algorithm)}
    return [name for name in algorithm.scheduled_rates if name in options]

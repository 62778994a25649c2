"""Faults that any method can have."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sfedhp.algorithms import Algorithm
from sfedhp.core.types import Clock
from sfedhp.core.vectors import toward, weighted_mean


def with_fault(fault: type, method: type[Algorithm]) -> type[Algorithm]:
    """The method with a fault, named as both."""
    return dataclass(frozen=True)(type(f"{method.__name__}{fault.__name__}", (fault, method), {}))


class OneBatch:
    """All steps get the first mini-batch."""

    def client_step(self, received, personal, task, clock):
        first = task.batch

        def batch(clock: Clock, step: int = 0, *more: Any, **options: Any) -> Any:
            return first(clock, 0, *more, **options)

        task = replace(task)
        task.batch = batch
        return super().client_step(received, personal, task, clock)


class NoClock:
    """Every round is the first for the mini-batches."""

    def client_step(self, received, personal, task, clock):
        return super().client_step(received, personal, task, Clock(0))


class UnweightedMean:
    """Members weigh alike."""

    def cloud_step(self, state, uploads, weights, clock):
        return weighted_mean(uploads, (weights > 0).to(weights.dtype))


class SquaredWeights:
    """Weights are applied twice."""

    def cloud_step(self, state, uploads, weights, clock):
        return weighted_mean(uploads, weights.square())


class HalfWay:
    """The cloud goes half of the way."""

    def cloud_step(self, state, uploads, weights, clock):
        return toward(state, weighted_mean(uploads, weights), 0.5)

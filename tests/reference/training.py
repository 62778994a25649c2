"""What every transcription is given, and the round that most of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tests.reference.networks import Network, Rows, Vector

Drawn = Sequence[Sequence[bool]] | None
Member = TypeVar("Member", Rows, Sequence[Rows])


@dataclass(frozen=True)
class Training(Generic[Member]):
    """T rounds from `initial` with the cloud's members: clients, or edges with their clients.

    `drawn[t][i]` says whether member i counts in round t (None: all do, always).
    """

    network: Network
    members: Sequence[Member]
    initial: Vector
    rounds: int
    drawn: Drawn = None

    def present(self, turn: int) -> list[int]:
        """The members that count in a round."""
        return [
            member for member in range(len(self.members)) if self.drawn is None or self.drawn[turn][member]
        ]


class Personalized(NamedTuple):
    """A global model, where the method has one, and a model for each client."""

    model: Vector | None
    personals: list[Vector]


def averaged(training: Training[Rows], train: Callable[[int, Vector], Vector]) -> Vector:
    """w after T rounds: each client present uploads train(client, w), and w is the mean, weighted by rows."""
    model = training.initial
    for turn in range(training.rounds):
        present = training.present(turn)
        uploads = [train(client, model) for client in present]
        model = weighted_mean(uploads, [row_count(training.members[client]) for client in present])
    return model


def descend(
    network: Network,
    rows: Rows,
    start: Vector,
    rate: float,
    steps: int,
    proximity: float = 0.0,
    anchor: Vector | None = None,
    linear: Vector | float = 0.0,
) -> Vector:
    """Gradient steps on ℓ(x) + proximity/2 ‖x − anchor‖² + ⟨linear, x⟩."""
    model = start
    for _ in range(steps):
        gradient = network.gradient(model, rows) + linear
        if anchor is not None:
            gradient = gradient + proximity * (model - anchor)
        model = model - rate * gradient
    return model


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[int]) -> Vector:
    """Σ weight·vector / Σ weight."""
    return np.average(vectors, axis=0, weights=weights)


def row_count(rows: Rows) -> int:
    """How much a client weighs in a mean that is weighted by rows."""
    return len(rows.labels)

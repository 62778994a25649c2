"""The small federation that methods are checked on, and how outcomes are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from sfedhp.algorithms.base import Algorithm
from sfedhp.core.factored import Factored, dense
from sfedhp.core.keys import ROLES, key
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task

EDGES, CLIENTS, ROWS, INPUTS, CLASSES, ROUNDS = 3, 4, 24, 6, 3, 3
TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-5}


class CheckError(AssertionError):
    """A method failed a check."""


@dataclass(frozen=True)
class Problem:
    """A small federation with clients of different sizes, on which a method is checked."""

    task: Task  # stacked (edges, clients)
    ids: Tensor  # (edges, clients)
    initial: Tensor  # (d,)
    statistics: Tensor  # (s,)
    seed: int

    def simulator(self, algorithm: Algorithm, **options: Any) -> Simulator:
        """The method on this problem."""
        stream = key(self.seed, ROLES["draw"])
        return Simulator(algorithm, self.task, self.ids, self.initial, self.statistics, stream, **options)


def problem(
    seed: int = 0, dtype: torch.dtype = torch.float64, classes: int = CLASSES, *, norm: bool = False
) -> Problem:
    """Clients whose rows are separable, with sizes from 5 to 24 and labels that differ between clients.

    Args:
        seed: of rows, weights and draws.
        dtype: of rows and weights.
        classes: how many.
        norm: whether the network has a layer that normalizes.
    """
    generator = torch.Generator().manual_seed(seed)
    lead = (EDGES, CLIENTS)
    ids = torch.arange(EDGES * CLIENTS).reshape(lead)
    sizes = torch.randint(5, ROWS + 1, lead, generator=generator)
    sizes[0, 0], sizes[-1, -1] = 5, ROWS
    # Every client holds two classes, and the rows of a class scatter around a center of their own.
    labels = (ids.unsqueeze(-1) + torch.randint(2, (*lead, ROWS), generator=generator)) % classes
    centers = 2 * torch.randn(classes, INPUTS, generator=generator, dtype=torch.float64)
    inputs = centers[labels] + 0.5 * torch.randn(
        *lead, ROWS, INPUTS, generator=generator, dtype=torch.float64
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        between = [nn.LayerNorm(5)] if norm else []
        layers = nn.Sequential(nn.Linear(INPUTS, 5), *between, nn.ReLU(), nn.Linear(5, classes))
        network = Network(layers.to(dtype))
    task = Task(
        network,
        inputs.to(dtype),
        labels,
        sizes,
        key(seed, ROLES["client"], ids),
        batch_size=8,
        classes=classes,
    )
    initial, statistics = network.initial()
    return Problem(task, ids, initial.to(dtype), statistics.to(dtype), seed)


def lent_task(simulator: Simulator) -> Task:
    """The task of all clients, with the current running statistics."""
    return replace(simulator.task, statistics=simulator.state.statistics)


def finish(simulator: Simulator) -> None:
    """Run a simulation for `ROUNDS` rounds."""
    for _ in simulator.run(ROUNDS):
        pass


def outcome(simulator: Simulator) -> list[tuple[str, Tensor]]:
    """The tensors a simulation ended with, each with the name of what it is."""
    state = simulator.state
    named = [("the cloud's state", state.served.state), ("personal", state.personal)]
    return [(name, tensor) for name, tree in named for tensor in leaves(tree)]


def same(what: str, name: str, first: Tensor, second: Tensor) -> None:
    """Raise a `CheckError` if two tensors differ by more than rounding."""
    gap, scale = float((first - second).norm()), float(second.norm())
    if not gap <= TOLERANCE[first.dtype] * scale:
        raise CheckError(f"{what}: {name} differs by {gap:.1e} of {scale:.1e}.")


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a state, factored models built."""
    if isinstance(tree, Tensor | Factored):
        return [dense(tree)]
    return [tensor for part in tree for tensor in leaves(part)]


def check_is_dataclass(algorithm: Algorithm) -> None:
    """Refuse a method whose class is not a dataclass itself: it would have no hyper-parameters.

    Raises:
        CheckError: the class has no `@dataclass`.
    """
    if "__dataclass_fields__" not in vars(type(algorithm)):
        raise CheckError(
            f"{type(algorithm).__name__} is not a dataclass: its fields are its hyper-parameters. Decorate "
            f"it with @dataclass(frozen=True)."
        )

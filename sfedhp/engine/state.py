"""The state of a simulation between two rounds, of one run or of a stack of runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.trees import tree_map
from sfedhp.engine.late import Late
from sfedhp.engine.rounds import Served
from sfedhp.wire.direction import Direction

_SENT: Final = "sent."


class ClientState(NamedTuple):
    """What all clients keep from one step to the next."""

    personal: Any
    statistics: Tensor  # (*lead, s), running


@dataclass(frozen=True)
class State:
    """Everything that a run needs to continue after a round: what a checkpoint holds.

    Only `trees` and `from_trees` know the fields; what acts on all of them goes through these two.
    """

    round: int  # cloud rounds done
    served: Served  # the cloud
    edges: Served | None  # the edges at the end of the last round; None before it, or with two tiers
    personal: Any  # what the algorithm keeps for each client
    statistics: Tensor  # (*lead, s), the clients' running statistics
    # The last messages down, by direction, where links code differences against them.
    sent: dict[Direction, Tensor] = field(default_factory=dict)
    late: Late | None = None  # uploads in flight, if the cloud does not wait for all edges

    @property
    def clients(self) -> ClientState:
        """What the clients keep: personal states and running statistics."""
        return ClientState(self.personal, self.statistics)

    def with_clients(self, clients: ClientState) -> State:
        """The state with a new part of the clients."""
        return replace(self, personal=clients.personal, statistics=clients.statistics)

    def with_sent(self, direction: Direction, messages: Tensor | tuple[()]) -> State:
        """The state with new last messages of a direction; () changes nothing."""
        if not isinstance(messages, Tensor):
            return self
        return replace(self, sent={**self.sent, direction: messages})

    @property
    def shared_messages(self) -> list[str]:
        """The directions whose last message was one to all members, which share its memory."""
        return sorted(name for name, messages in self.sent.items() if _is_shared(messages))

    def sharing(self, directions: Collection[str]) -> State:
        """The state in which members share the last message of each of these directions."""
        sent = {
            name: messages[..., :1, :].expand(messages.shape) if name in directions else messages
            for name, messages in self.sent.items()
        }
        return replace(self, sent=sent)

    def trees(self) -> dict[str, Any]:
        """Every part, a tree of tensors, under its name in a checkpoint."""
        trees = {"cloud": self.served, "personal": self.personal, "statistics": self.statistics}
        if self.edges is not None:
            trees["edges"] = self.edges
        if self.late is not None:
            trees["late"] = self.late
        return trees | {f"{_SENT}{direction}": messages for direction, messages in self.sent.items()}

    @classmethod
    def from_trees(cls, rounds_done: int, trees: Mapping[str, Any]) -> State:
        """The state whose `trees` these are; other names are not read.

        Raises:
            KeyError: a part is missing.
        """
        sent = {
            Direction(name.removeprefix(_SENT)): messages
            for name, messages in trees.items()
            if name.startswith(_SENT)
        }
        return cls(
            rounds_done,
            trees["cloud"],
            trees.get("edges"),
            trees["personal"],
            trees["statistics"],
            sent,
            trees.get("late"),
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """The state with a function applied to every tensor."""
        trees = {name: tree_map(function, tree) for name, tree in self.trees().items()}
        return State.from_trees(self.round, trees)

    def of_run(self, run: int) -> State:
        """The state of one run of a stack."""
        return self.map(lambda tensor: tensor[run])

    @classmethod
    def stack(cls, states: Sequence[State]) -> State:
        """The state of a stack of runs that are in the same round; the first axis is the runs'."""
        each = [state.trees() for state in states]
        stacked = {
            name: tree_map(lambda *tensors: torch.stack(tensors), *(trees[name] for trees in each))
            for name in each[0]
        }
        shared = set.intersection(*(set(state.shared_messages) for state in states))
        return cls.from_trees(states[0].round, stacked).sharing(shared)


def _is_shared(messages: Tensor) -> bool:
    return messages.ndim > 1 and messages.stride(-2) == 0

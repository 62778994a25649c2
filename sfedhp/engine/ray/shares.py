"""A simulation in shares: some members of the cloud each, with their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor

from sfedhp.core.trees import tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.ray.packing import packed, side_by_side, unpacked
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.slices import Piece
from sfedhp.engine.state import Clients
from sfedhp.wire.direction import Direction

# The direction below the edges whose last messages may be the bases of differences.
_BASES = Direction.EDGE_CLIENT


def divided(members: int, count: int) -> list[Piece]:
    """Consecutive members in as many pieces, as equal as can be."""
    ends = [members * index // count for index in range(count + 1)]
    return [Piece(0, first, end - first) for first, end in pairwise(ends)]


def parts_of(simulator: Simulator, piece: Piece) -> dict[str, Any]:
    """What a simulator of these members alone is made of; nothing of the others is in it."""

    def own(tensor: Tensor) -> Tensor:
        mine = piece.cut(tensor).clone()
        # A simulator is given edges of clients: with two tiers the clients of a share are one.
        return mine if simulator.algorithm.tiers == 3 else mine.unsqueeze(0)

    return {
        "algorithm": simulator.algorithm,
        "task": simulator.task.map(own),
        "ids": own(simulator.ids),
        "initial": simulator.initial,
        "statistics": simulator.statistics,
        "stream": simulator.stream,
        "links": dict(simulator.links),
        "lost": simulator.lost,
        "clients_at_once": simulator.clients_at_once,
    }


class Share:
    """Some members with their data.

    It keeps nothing from one call to the next: what a call needs comes with it, so that a call can be
    repeated, by this share or by one that takes its place, and gives the same.
    """

    def __init__(self, parts: dict[str, Any]):
        self._simulator = Simulator(**parts)

    def edge_rounds(self, turn: int, trees: Any) -> Any:
        """The edges of this share serve their clients."""
        received, statistics, held, bases = unpacked(trees)
        simulator = self._simulator
        sent = {_BASES: bases} if isinstance(bases, Tensor) else {}
        simulator.state = replace(simulator.state, sent=sent)
        result = simulator.edge_rounds(turn, received, statistics, held)
        return packed((*result, simulator.state.sent.get(_BASES, ())))

    def client_steps(self, turn: int, trees: Any) -> Any:
        """The clients of this share, or those of the rows drawn, step."""
        received, held, rows = unpacked(trees)
        task = self._simulator.task
        if isinstance(rows, Tensor):
            task = task.map(lambda tensor: tensor[rows])
        return packed(self._simulator.step(received, held, task, Clock(turn)))


# (name of a `Share` method, the turn, packed arguments by the number of the share) -> what they return
Ask = Callable[[str, int, dict[int, Any]], Sequence[Any]]


@dataclass
class Spread:
    """Does a simulator's work by asking shares of its members, and puts what they return side by side."""

    simulator: Simulator
    pieces: Sequence[Piece]
    ask: Ask
    word: str  # how, for the run's records

    def __call__(self, turn: int, *trees: Any) -> Any:
        """What the simulator's own function returns."""
        return self._edge_rounds(turn, *trees) if self._tiers == 3 else self._client_steps(turn, *trees)

    @property
    def _tiers(self) -> int:
        return self.simulator.algorithm.tiers

    def _edge_rounds(self, turn: int, received: Tensor, statistics: Tensor, held: Clients) -> Any:
        sent = self.simulator.state.sent
        calls = {}
        for index, piece in enumerate(self.pieces):
            own, kept, bases = tree_map(piece.cut, (received, held, sent.get(_BASES, ())))
            calls[index] = packed((own, statistics, kept, bases))
        *result, bases = self._together("edge_rounds", turn, calls)
        if isinstance(bases, Tensor):
            self.simulator.state = replace(self.simulator.state, sent={**sent, _BASES: bases})
        return tuple(result)

    def _client_steps(self, turn: int, received: Tensor, held: Clients, drawn: Tensor | None) -> Any:
        calls: dict[int, Any] = {}
        for index, piece in enumerate(self.pieces):
            if drawn is None:
                calls[index] = packed((*tree_map(piece.cut, (received, held)), ()))
            elif len(rows := piece.cut(drawn).nonzero().squeeze(-1)):
                pick = partial(_picked, piece, rows)
                calls[index] = packed((*tree_map(pick, (received, held)), rows))
        return self._together("client_steps", turn, calls)

    def _together(self, what: str, turn: int, calls: dict[int, Any]) -> Any:
        return side_by_side([unpacked(result) for result in self.ask(what, turn, calls)])


def _picked(piece: Piece, rows: Tensor, tensor: Tensor) -> Tensor:
    """Some rows of a piece; a row that all share stays one."""
    own = piece.cut(tensor)
    if len(own) == 1 or not own.stride(0):
        return own[:1].expand(len(rows), *own.shape[1:])
    return own[rows]

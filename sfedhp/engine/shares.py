"""Divides a simulation into shares: each has some members of the cloud, with their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sfedhp.core.trees import tree_map
from sfedhp.core.types import Clock
from sfedhp.engine.client_stack import ClientStack
from sfedhp.engine.cuda_graphs import GraphStatus, Recorder
from sfedhp.engine.edge_rounds import run_edge_rounds
from sfedhp.engine.links import Base
from sfedhp.engine.packing import CPU, concatenate, pack, unpack
from sfedhp.engine.slices import Slice
from sfedhp.engine.state import ClientState


def split_evenly(members: int, count: int) -> list[Slice]:
    """Consecutive members in `count` slices, as equal as possible."""
    ends = [members * index // count for index in range(count + 1)]
    return [Slice(0, first, end - first) for first, end in pairwise(ends)]


def clients_of(stack: ClientStack, part: Slice) -> ClientStack:
    """The clients of some members of the cloud, as copies on the CPU that hold nothing of the others."""
    return stack.map(lambda tensor: part.cut(tensor).clone()).to(CPU)


class Share:
    """Some members with their data.

    It has no state between calls: a call brings what it needs. So this share, or one that replaces it, can
    repeat a call with the same result.
    """

    def __init__(self, clients: ClientStack, device: torch.device = CPU):
        self._clients, self._device = clients.to(device), device
        obstacle = "" if device.type == "cuda" else f"the device is a {device.type}"
        self._recorder = Recorder(partial(run_edge_rounds, self._clients), device, obstacle)

    def edge_rounds(self, turn: int, trees: Any) -> Any:
        """The edge rounds of this share's edges; arguments and result are packed."""
        return pack(self._recorder(turn, *unpack(trees, self._device)))

    def client_steps(self, turn: int, trees: Any) -> Any:
        """The steps of this share's clients, or of those drawn; arguments and result are packed."""
        received, clients, rows = unpack(trees, self._device)
        stack = self._clients
        if isinstance(rows, Tensor):
            stack = stack.map(lambda tensor: tensor[rows])
        return pack(stack.step(received, clients, Clock(turn)))


# (name of a `Share` method, the turn, packed arguments by the number of the share) -> what they return
CallShares = Callable[[str, int, dict[int, Any]], Sequence[Any]]


@dataclass
class SharedWorker:
    """Does the members' part of a round by calling shares, and joins their results."""

    tiers: int
    slices: Sequence[Slice]  # the members of each share
    call: CallShares
    status: GraphStatus
    device: torch.device = CPU  # of the process that runs the simulation

    def __call__(self, turn: int, *trees: Any) -> Any:
        """What the simulator itself would compute: `run_edge_rounds`, or the clients' steps."""
        return self._edge_rounds(turn, *trees) if self.tiers == 3 else self._client_steps(turn, *trees)

    def _edge_rounds(
        self, turn: int, received: Tensor, statistics: Tensor, clients: ClientState, base: Base
    ) -> Any:
        calls = {}
        for index, part in enumerate(self.slices):
            own, kept, own_base = tree_map(part.cut, (received, clients, base))
            calls[index] = pack((own, statistics, kept, own_base))
        return self._joined("edge_rounds", turn, calls)

    def _client_steps(self, turn: int, received: Tensor, clients: ClientState, drawn: Tensor | None) -> Any:
        calls: dict[int, Any] = {}
        for index, part in enumerate(self.slices):
            if drawn is None:
                calls[index] = pack((*tree_map(part.cut, (received, clients)), ()))
            elif len(rows := part.cut(drawn).nonzero().squeeze(-1)):
                pick = partial(_pick, part, rows)
                calls[index] = pack((*tree_map(pick, (received, clients)), rows))
        return self._joined("client_steps", turn, calls)

    def _joined(self, method: str, turn: int, calls: dict[int, Any]) -> Any:
        """Call a method of `Share` in each process, and join the results along the members' axis."""
        return concatenate([unpack(result, self.device) for result in self.call(method, turn, calls)])


def _pick(part: Slice, rows: Tensor, tensor: Tensor) -> Tensor:
    """Some rows of a slice; a row that all share stays one."""
    own = part.cut(tensor)
    if len(own) == 1 or not own.stride(0):
        return own[:1].expand(len(rows), *own.shape[1:])
    return own[rows]

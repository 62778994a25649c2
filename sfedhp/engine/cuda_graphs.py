"""Rounds as CUDA graphs: thousands of small kernels recorded once, then launched as one.

On a GPU, kernel launches, not arithmetic, limit a round of small clients. A recorded function must be a pure
function of the turn's number (a tensor on the device) and of trees of tensors. Draws are keyed by that
number, so a graph draws its own mini-batches and needs nothing from the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from sfedhp.core.trees import Tree, copied, tree_map, without_repeats

Work = Callable[..., Any]  # (turn, *trees) -> tree


class GraphState(Enum):
    """Whether the work of rounds is replayed as a CUDA graph; the values are the words in a run's records."""

    PENDING = "to be tried"
    RECORDED = "cuda graph"
    OFF = "no"


@dataclass(frozen=True)
class GraphStatus:
    """Whether a graph is used, and if not, why."""

    state: GraphState = GraphState.PENDING
    reason: str = ""

    @classmethod
    def off(cls, reason: str) -> GraphStatus:
        """The status without a graph, with the reason."""
        return cls(GraphState.OFF, reason)

    def __str__(self) -> str:
        """The text in a run's environment.json."""
        return f"{self.state.value}: {self.reason}" if self.reason else self.state.value


class Worker(Protocol):
    """Does the members' part of a round, in this process or in others."""

    status: GraphStatus

    def __call__(self, turn: int, *trees: Any) -> Any:
        """The result of a `Work` function."""


class Recorder:
    """Calls a function, and replays it as a CUDA graph after two calls in a row with arguments of one form.

    In the first call with a form, the function runs normally, but an operation that waits for the device
    raises an error, because a graph cannot contain it. The second call is recorded; later calls replay it on
    their own arguments. A function that cannot be recorded is called normally; `status` says why.
    """

    def __init__(self, function: Work, device: torch.device, obstacle: str = ""):
        """Prepare to call a function.

        Args:
            function: (turn, *trees) -> tree. It must neither keep nor change its arguments.
            device: of all tensors.
            obstacle: why recording need not be tried; empty: it is tried.
        """
        self.status = GraphStatus.off(obstacle) if obstacle else GraphStatus()
        self._function = function
        self._device = device
        self._form: Hashable = None  # of the last arguments
        self._recorded: _Recorded | None = None

    def __call__(self, turn: int, *trees: Any) -> Any:
        """The function's result, in memory that belongs to the caller."""
        if self.status.state is GraphState.OFF:
            return self._function(turn, *trees)
        try:
            return self._attempt(turn, trees)
        except RuntimeError as error:
            # An error of the function itself is raised again by this second call.
            self.status = GraphStatus.off((str(error).strip() or type(error).__name__).splitlines()[0])
            self._recorded = None
            return self._function(turn, *trees)

    def _attempt(self, turn: int, trees: tuple[Any, ...]) -> Any:
        """Try, record or replay the function, depending on earlier calls with the same form."""
        form = form_of(trees)
        if form != self._form:
            self._form, self._recorded, self.status = form, None, GraphStatus()
            with no_device_sync():
                return self._function(torch.full((), turn, device=self._device), *trees)
        if self._recorded is None:
            self._recorded = _Recorded(self._function, self._device, trees)
            self.status = GraphStatus(GraphState.RECORDED)
        return self._recorded(turn, trees)


class _Recorded:
    """A recorded function with its arguments and results at fixed addresses."""

    def __init__(self, function: Work, device: torch.device, trees: tuple[Any, ...]):
        turn = torch.zeros((), dtype=torch.int64, device=device)
        inputs = copied(trees)
        self._turn, self._inputs = turn, inputs
        self._replay, self._outputs = record(lambda: function(turn, *inputs), device)

    def __call__(self, turn: int, trees: tuple[Any, ...]) -> Any:
        self._turn.fill_(turn)
        tree_map(_copy_into, self._inputs, trees)
        self._replay()
        # The next replay writes to the same addresses, and the caller keeps these results.
        return copied(self._outputs)


def form_of(tree: Any) -> Hashable:
    """The form of arguments, which must be equal for a replay: structure, shapes, shared rows and types."""
    if isinstance(tree, tuple):
        return (type(tree), *map(form_of, tree))
    if isinstance(tree, Tensor):
        return (tree.shape, tree.dtype, tree.device, without_repeats(tree).shape)
    leaf: Hashable = tree
    return leaf


def _copy_into(target: Any, leaf: Any) -> None:
    if isinstance(leaf, Tensor):
        without_repeats(target).copy_(without_repeats(leaf))


def record(
    function: Callable[[], Tree], device: torch.device
) -> tuple[Callable[[], None], Tree]:  # pragma: no cover - needs a GPU (tests/gpu)
    """Record a function as a CUDA graph; what replays it, and the tensors that hold its results."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    try:
        # Other threads may use the device during the recording.
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = function()
    finally:
        torch.cuda.set_stream(stream)  # after a failed recording, its own stream is still the current one
    return graph.replay, outputs


@contextmanager
def no_device_sync() -> Iterator[None]:  # pragma: no cover - needs a GPU (tests/gpu)
    """A context in which operations that wait for the device raise an error."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it may miss some; those fail in the recording
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)

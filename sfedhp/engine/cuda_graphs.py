"""Rounds as CUDA graphs: thousands of small kernels recorded once, then launched as one.

On a GPU a round of small clients is bound by the launches, not by the work. What is recorded must be a pure
function: of the turn's number, which is a tensor on the device then, and of trees of tensors. Draws are keyed
by that number, so a graph draws its own mini-batches and nothing comes from the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from sfedhp.core.trees import Tree, copied, stored, tree_map

GRAPH: Final = "cuda graph"
PENDING: Final = "to be tried"
Work = Callable[..., Any]  # (turn, *trees) -> tree


class Worker(Protocol):
    """Whoever does the work of a round; `word` says how, for the run's records."""

    word: str

    def __call__(self, turn: int, *trees: Any) -> Any:
        """The result of a `Work` function."""


class Recorder:
    """Calls a function; as a graph once two calls in a row had arguments of the same form.

    The first call of a form is a rehearsal: it runs as it is, watched for whatever would wait for the device,
    which a graph cannot hold. The second is recorded, the others replay it on their own arguments. What
    cannot be recorded is called as it is; `word` says which it is, and why.
    """

    def __init__(self, function: Work, device: torch.device, obstacle: str = ""):
        """Prepare to call a function.

        Args:
            function: (turn, *trees) -> tree. It must not keep nor change what it is given.
            device: of all tensors.
            obstacle: why there is no use in trying.
        """
        self.word = f"no: {obstacle}" if obstacle else PENDING
        self._function = function
        self._device = device
        self._form: Hashable = None  # of the last arguments
        self._recorded: _Recorded | None = None

    def __call__(self, turn: int, *trees: Any) -> Any:
        """The function's result, in memory of the caller's own."""
        if self.word.startswith("no: "):
            return self._function(turn, *trees)
        try:
            return self._attempt(turn, trees)
        except RuntimeError as error:
            # An error of the function's own comes again, where nobody catches it.
            self.word = f"no: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
            self._recorded = None
            return self._function(turn, *trees)

    def _attempt(self, turn: int, trees: tuple[Any, ...]) -> Any:
        form = form_of(trees)
        if form != self._form:
            self._form, self._recorded, self.word = form, None, PENDING
            with rehearsal():
                return self._function(torch.full((), turn, device=self._device), *trees)
        if self._recorded is None:
            self._recorded = _Recorded(self._function, self._device, trees)
            self.word = GRAPH
        return self._recorded(turn, trees)


class _Recorded:
    """A function on arguments that lie in one place for good."""

    def __init__(self, function: Work, device: torch.device, trees: tuple[Any, ...]):
        turn = torch.zeros((), dtype=torch.int64, device=device)
        inputs = copied(trees)
        self._turn, self._inputs = turn, inputs
        self._replay, self._outputs = record(lambda: function(turn, *inputs), device)

    def __call__(self, turn: int, trees: tuple[Any, ...]) -> Any:
        self._turn.fill_(turn)
        tree_map(_put, self._inputs, trees)
        self._replay()
        # The next replay writes where this one did, and whoever called keeps what it got.
        return copied(self._outputs)


def form_of(tree: Any) -> Hashable:
    """What must be equal for arguments to take one another's place: structure, shapes, shared rows, types."""
    if isinstance(tree, tuple):
        return (type(tree), *map(form_of, tree))
    if isinstance(tree, Tensor):
        return (tree.shape, tree.dtype, tree.device, stored(tree).shape)
    return tree  # type: ignore[no-any-return]


def _put(target: Any, leaf: Any) -> None:
    if isinstance(leaf, Tensor):
        stored(target).copy_(stored(leaf))


def record(
    function: Callable[[], Tree], device: torch.device
) -> tuple[Callable[[], None], Tree]:  # pragma: no cover - needs a GPU (tests/gpu)
    """The function as a CUDA graph: what replays it, and where its results are."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    try:
        # What other threads do meanwhile is no concern of this graph.
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = function()
    finally:
        torch.cuda.set_stream(stream)  # where a recording breaks off, it leaves its own stream behind
    return graph.replay, outputs


@contextmanager
def rehearsal() -> Iterator[None]:  # pragma: no cover - needs a GPU (tests/gpu)
    """Whoever waits for the device gets an error instead."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it may miss some; those fail in the recording
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)

"""The loop of every server, of the cloud and of an edge, in every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.aggregation import AggregationOptions, Cut, aggregate, trim
from sfedhp.core.factored import Factored, dense
from sfedhp.core.keys import key
from sfedhp.core.trees import keep
from sfedhp.core.types import Clock
from sfedhp.core.vectors import weighted_mean


class Served(NamedTuple):
    """The state of a server: the algorithm's state, and the mean of its members' running statistics."""

    state: Any
    statistics: Tensor  # (..., s)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The names of the fields in checkpoints, which must stay readable."""
        return ("state", "tail")


class Message(NamedTuple):
    """A message: models, and the running statistics after them."""

    model: Tensor | Factored
    statistics: Tensor  # (..., s)


Draw = Callable[[int], Tensor | None]  # turn -> (..., members) bool; None: all
Gather = Callable[[Any, int, Tensor | None], tuple[Any, Tensor]]
Step = Callable[[Any, Any, Tensor, int], Any]
Robustly = Callable[[Served, Message, Tensor], Message]  # (state, uploads, weights) -> uploads
Privately = Callable[[Served, Message, Tensor, Clock], Message]  # the same, with noise of this time


def robust_uploads(
    options: AggregationOptions,
    message_of: Callable[[Any, int], Tensor],
    on_cut: Callable[[Cut], None] = lambda cut: None,
) -> Robustly | None:
    """The robust rule that a server applies to uploads; None if it is off.

    Args:
        options: the [aggregation] section.
        message_of: the algorithm's `cloud_message` or `edge_message`.
        on_cut: called with what was cut of each member's upload.
    """
    if not options.robust:
        return None

    def robustly(served: Served, uploads: Message, weights: Tensor) -> Message:
        sent = message_of(served.state, weights.shape[-1])
        model, cut = aggregate(options, dense(uploads.model), weights, sent)
        on_cut(cut)
        statistics, _ = trim(options, uploads.statistics, weights)
        return Message(model, statistics)

    return robustly


def serve(
    state: Any, step: Step, gather: Gather, turns: Iterable[int], draw: Draw, never_empty: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """Gather the members' uploads and step, turn by turn; yields the state and the members' weights.

    Sampling, lost replies and weighting are one mechanism: a member that was not sampled or did not reply has
    weight zero. If all members in a row of the stack have weight zero, it keeps its state, and the turn
    counts.

    Args:
        state: the server's, before the first turn.
        step: (state, uploads, weights, turn) -> state.
        gather: (state, turn, drawn) -> uploads and weights (..., members).
        turns: the numbers of the turns: cloud rounds, or edge rounds.
        draw: which members take part in a turn.
        never_empty: every row has a reply in every turn, so that no state has to be kept.
    """
    for turn in turns:
        uploads, weights = gather(state, turn, draw(turn))
        after = step(state, uploads, weights, turn)
        del uploads  # they may be large, and members are about to make new ones
        state = after if never_empty else keep(weights.sum(-1) > 0, after, state)
        yield state, weights


def stepping(
    step: Callable[[Any, Any, Tensor, Clock], Any],
    clock: Callable[[int], Clock],
    robustly: Robustly | None = None,
    privately: Privately | None = None,
) -> Step:
    """A server's step: the algorithm's on models, and the plain mean of the statistics that were sent.

    Args:
        step: the algorithm's `cloud_step` or `edge_step`.
        clock: turn -> the clock of the step.
        robustly: what is done with uploads before; None: nothing.
        privately: what is then done, so that their mean reveals little of one; None: nothing.
    """

    def both(served: Served, uploads: Message, weights: Tensor, turn: int) -> Served:
        if robustly is not None:
            uploads = robustly(served, uploads, weights)
        if privately is not None:
            uploads = privately(served, uploads, weights, clock(turn))
        state = step(served.state, uploads.model, weights, clock(turn))
        statistics = uploads.statistics
        if not statistics.shape[-1]:
            return Served(state, served.statistics)
        return Served(state, weighted_mean(statistics, (weights > 0).to(statistics.dtype)))

    return both


def everybody(turn: int) -> None:
    """The draw of all members: None in every turn."""


def drawing(stream: Tensor, sampled: int, ids: Tensor, seated: Tensor) -> Draw:
    """A function that draws `sampled` of the members each turn, keyed by their ids.

    Args:
        stream: (...), the key of each run's draws.
        sampled: how many; 0: all.
        ids: (..., members), their ids.
        seated: (..., members), False for an empty seat, which is never drawn.
    """
    if not sampled:
        return everybody

    def draw(turn: int) -> Tensor:
        hashes = key(key(stream, turn).unsqueeze(-1), ids)
        hashes = torch.where(seated, hashes, torch.iinfo(torch.int64).max)
        chosen = torch.topk(hashes, sampled, largest=False).indices
        return torch.zeros_like(hashes, dtype=torch.bool).scatter(-1, chosen, True)

    return draw

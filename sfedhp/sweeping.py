"""Many runs at once: experiments of one shape are stacked on an axis of their own and share every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sfedhp.config import Experiment
from sfedhp.driving import Outcome, Report, Stop, drive
from sfedhp.memory import free_memory
from sfedhp.preparation import device_of, prepare, prepare_stack, stackable
from sfedhp.running import new_folder
from sfedhp.runs.records import History

_COPIES = 8  # d-sized tensors of a client that a round holds at its widest


class Stack(NamedTuple):
    """Experiments that run together, by their place in the sweep."""

    places: tuple[int, ...]


def plan(experiments: Sequence[Experiment], at_once: int = 0) -> list[Stack]:
    """Which experiments run together: those of one shape, as many as memory holds.

    Args:
        experiments: in any order.
        at_once: at most so many in a stack; 0: as many as fit in half of the free memory.
    """
    groups: dict[object, list[int]] = {}
    for place, experiment in enumerate(experiments):
        groups.setdefault(stackable(experiment), []).append(place)
    stacks = []
    for places in groups.values():
        width = at_once or _runs_that_fit(experiments[places[0]], len(places))
        stacks += [Stack(tuple(places[first : first + width])) for first in range(0, len(places), width)]
    return stacks


def sweep(
    experiments: Sequence[Experiment],
    folders: Sequence[Path | None] | None = None,
    *,
    at_once: int = 0,
    report: Report | None = None,
    stop: Stop | None = None,
) -> list[Outcome]:
    """Run all experiments, stack by stack; every run gives the numbers it gives alone.

    Args:
        experiments: what to run.
        folders: one for each, for its records and models; None: nothing is written.
        at_once: at most so many runs in a stack; 0: as many as memory holds.
        report: called after every round of a stack.
        stop: asked after every round; True ends the sweep there.

    Returns:
        How each run ended, in the order of the experiments; those that never began are left out.
    """
    folders = [None] * len(experiments) if folders is None else folders
    outcomes: dict[int, Outcome] = {}
    for stack in plan(experiments, at_once):
        chosen = [experiments[place] for place in stack.places]
        prepared = prepare(chosen[0]) if len(chosen) == 1 else prepare_stack(chosen)
        targets = [folders[place] for place in stack.places]
        histories = [
            History() if folder is None else new_folder(prepared, index, folder)
            for index, folder in enumerate(targets)
        ]
        ended = drive(prepared, histories, targets, None, report, stop)
        outcomes.update(zip(stack.places, ended, strict=True))
        if stop is not None and stop():
            break
    return [outcomes[place] for place in sorted(outcomes)]


def _runs_that_fit(experiment: Experiment, wanted: int) -> int:
    if wanted == 1:
        return 1
    prepared = prepare(experiment)
    rows = sum(
        len(held) for kind in ("train", "test", "validation") for held in getattr(prepared.federation, kind)
    )
    row = prepared.simulator.task.inputs[(0,) * len(prepared.simulator.task.lead)][0]
    weights = _COPIES * prepared.simulator.task.sizes.numel() * prepared.simulator.task.network.d
    each = (rows * row.numel() + weights) * row.element_size()
    return max(1, min(wanted, free_memory(device_of(experiment.device)) // 2 // each))

"""Many runs at once: experiments of one shape are stacked on an axis of their own and share every kernel."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sfedhp.config import Experiment, to_dict
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked, remove_temporary_files
from sfedhp.engine.memory import runs_that_fit
from sfedhp.engine.state import State
from sfedhp.runs import checkpoints
from sfedhp.runs.checkpoints import Checkpoint
from sfedhp.runs.loop import Outcome, Report, Stop, drive, outcome_of
from sfedhp.runs.prepare import Prepared, prepare, prepare_stack, stackable
from sfedhp.runs.provenance import SOURCE, contrast, difference
from sfedhp.runs.records import History, rows_of_run
from sfedhp.runs.run import check_belongs, check_vacant, new_folder, read_experiment


class Stack(NamedTuple):
    """Experiments that run together, by their place in the sweep."""

    places: tuple[int, ...]


def plan(
    experiments: Sequence[Experiment], at_once: int = 0, folders: Sequence[Path | None] | None = None
) -> list[Stack]:
    """Which experiments run together: those of one shape that are equally far, as many as memory holds.

    A run that diverged before stands alone, at the end: there is nothing left to compute.

    Args:
        experiments: in any order.
        at_once: at most so many in a stack; 0: as many as fit in half of the free memory.
        folders: of the runs, some of which may be half done.

    Raises:
        InputError: a folder is in use, or has checkpoints and none can be read.
    """
    groups: dict[Hashable, list[int]] = {}
    diverged: list[Stack] = []
    for place, experiment in enumerate(experiments):
        found = _at_rest(folders[place]) if folders else None
        if _trouble(found):
            diverged.append(Stack((place,)))
        else:
            groups.setdefault((stackable(experiment), found.round if found else 0), []).append(place)
    stacks = []
    for places in groups.values():
        width = at_once or _runs_that_fit(experiments[places[0]], len(places))
        stacks += [Stack(tuple(places[first : first + width])) for first in range(0, len(places), width)]
    return stacks + diverged


def check(
    experiments: Sequence[Experiment], stacks: Sequence[Stack], folders: Sequence[Path | None] | None = None
) -> None:
    """See that everything can run, and where, before the first folder is made.

    Raises:
        InputError: an experiment cannot be run, or a folder holds another run.
    """
    resolved: dict[Hashable, Experiment] = {}
    for stack in stacks:
        first = stackable(experiments[stack.places[0]])
        if first not in resolved:
            # What does not go together shows in two.
            resolved[first] = _prepared([experiments[place] for place in stack.places[:2]]).experiment
        for place in stack.places:
            folder = folders[place] if folders else None
            if folder is not None:
                _check_folder(folder, replace(experiments[place], data=resolved[first].data))


def sweep(
    experiments: Sequence[Experiment],
    folders: Sequence[Path | None] | None = None,
    *,
    at_once: int = 0,
    report: Report | None = None,
    stop: Stop | None = None,
) -> list[Outcome]:
    """Run all experiments, stack by stack; every run gives the numbers it gives alone.

    A folder that holds the same run, finished or stopped, is gone on with; one that diverged is not repeated.

    Args:
        experiments: what to run.
        folders: one for each, for its records, checkpoints and models; None: nothing is written.
        at_once: at most so many runs in a stack; 0: as many as memory holds.
        report: called after every round of a stack.
        stop: asked after every round; True saves the states and ends the sweep there.

    Returns:
        How each run ended, in the order of the experiments; those that never began are left out.
    """
    folders = [None] * len(experiments) if folders is None else folders
    outcomes: dict[int, Outcome] = {}
    for stack in plan(experiments, at_once, folders):
        prepared = _prepared([experiments[place] for place in stack.places])
        ended = _ended(prepared, [folders[place] for place in stack.places], report, stop)
        outcomes.update(zip(stack.places, ended, strict=True))
        if stop is not None and stop():
            break
    return [outcomes[place] for place in sorted(outcomes)]


def rounds_done(folder: Path) -> int:
    """After how many rounds the run in a folder was saved last; 0 where there is none.

    Raises:
        InputError: it has checkpoints, and none can be read.
    """
    found = _found(folder)
    return found.round if found else 0


def _found(folder: Path) -> Checkpoint | None:
    """The last checkpoint of the run in a folder; None where there is none, or no run."""
    if not (folder / "config.toml").exists():
        return None
    try:
        return checkpoints.read(folder / "checkpoint")
    except InputError:
        raise InputError(
            f"No checkpoint of the run in {folder} can be read: delete that folder, and the sweep does the "
            f"run anew."
        ) from None


def _at_rest(folder: Path | None) -> Checkpoint | None:
    """The same, of a run that is not under way."""
    if folder is None or not folder.is_dir():
        return None
    with locked(folder):
        return _found(folder)


def _trouble(found: Checkpoint | None) -> str | None:
    return found.about.get("trouble") if found else None


def _ended(
    prepared: Prepared, folders: Sequence[Path | None], report: Report | None, stop: Stop | None
) -> list[Outcome]:
    """How the runs of a stack end, each in its folder, which is theirs meanwhile."""
    own = [folder for folder in folders if folder is not None]
    with ExitStack() as holding:
        for folder in own:
            holding.enter_context(locked(folder))
        histories = _opened(prepared, folders)
        troubles = [trouble for folder in own if (trouble := _trouble(_found(folder)))]
        if not troubles:
            return drive(prepared, histories, folders, report, stop)
        if len(folders) > 1:
            raise _elsewhere(folders)
        return [outcome_of(prepared, 0, prepared.simulator.state, histories[0], folders[0], troubles[0])]


def _elsewhere(folders: Sequence[Path | None]) -> InputError:
    named = ", ".join(str(folder) for folder in folders)
    return InputError(
        f"A run of {named} was gone on with elsewhere while this sweep ran: give the same command again."
    )


def _prepared(experiments: Sequence[Experiment]) -> Prepared:
    return prepare(experiments[0]) if len(experiments) == 1 else prepare_stack(experiments)


def _check_folder(folder: Path, resolved: Experiment) -> bool:
    """Whether there is a run to go on with.

    Raises:
        InputError: there is, but it is another one.
    """
    if not (folder / "config.toml").exists():
        check_vacant(folder)
        return False
    then = read_experiment(folder)
    apart = difference(to_dict(resolved), to_dict(then))
    for key, now, before in (
        ("rounds", resolved.rounds, then.rounds),
        (SOURCE, resolved.data.source, then.data.source),
    ):
        apart = apart or (contrast(key, now, before) if now != before else None)
    if apart:
        raise InputError(f"{folder} holds another run: here is {apart}; choose another folder.")
    return True


def _opened(prepared: Prepared, folders: Sequence[Path | None]) -> list[History]:
    """The histories of a stack's runs, and the simulator where they were stopped.

    Raises:
        InputError: they are not as the stack was planned.
    """
    states = [
        _saved(prepared, index, folder)
        if folder is not None and _check_folder(folder, prepared.experiments[index])
        else None
        for index, folder in enumerate(folders)
    ]
    known = [state for state in states if state is not None and state.round]
    if len({state.round for state in known}) > 1 or len(known) not in (0, len(folders)):
        raise _elsewhere(folders)
    if known:
        prepared.simulator.state = known[0] if len(known) == 1 else State.stack(known)
    histories = []
    for index, folder in enumerate(folders):
        if folder is None:
            histories.append(History())
        elif (folder / "config.toml").exists():
            path = folder / "history.jsonl"
            histories.append(History(path, rows_of_run(path, prepared.simulator.state.round)))
        else:
            histories.append(new_folder(prepared, index, folder))
    return histories


def _saved(prepared: Prepared, index: int, folder: Path) -> State | None:
    """Where a run was stopped, or diverged; None where it has no checkpoint: then it begins anew.

    Raises:
        InputError: it was computed with other data, or another model.
    """
    remove_temporary_files(folder)
    found = _found(folder)
    if found is None:
        return None
    check_belongs(found, folder, prepared, index)
    return checkpoints.restored(prepared.simulator, found)


def _runs_that_fit(experiment: Experiment, wanted: int) -> int:
    if wanted == 1:
        return 1
    prepared = prepare(experiment)
    rows = sum(
        len(held) for kind in ("train", "test", "validation") for held in getattr(prepared.federation, kind)
    )
    return min(wanted, runs_that_fit(prepared.simulator.task, rows))

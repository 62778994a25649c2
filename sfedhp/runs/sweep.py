"""Many runs at once: experiments of one shape are stacked on an axis for runs and share every kernel."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sfedhp.config import Experiment, check_experiment
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked, remove_temporary_files
from sfedhp.engine.memory import runs_that_fit
from sfedhp.engine.state import State
from sfedhp.runs import checkpoints
from sfedhp.runs.build import Model
from sfedhp.runs.cautions import cautions_of
from sfedhp.runs.checkpoints import Checkpoint
from sfedhp.runs.compatibility import check_data_and_model, check_same_run, error_of
from sfedhp.runs.completion import has_ended
from sfedhp.runs.devices import sweep_on_devices
from sfedhp.runs.federation import Data, with_data_of
from sfedhp.runs.folder import SUBFOLDERS, check_vacant, create, holds_run, open_history
from sfedhp.runs.loop import Report, RunInStack, Stop, conclude, drive, naming
from sfedhp.runs.prepare import Prepared, prepare, prepare_stack
from sfedhp.runs.records import History
from sfedhp.runs.results import Outcome
from sfedhp.runs.stacking import stack_key

Folders = Sequence[Path | str | None]


def sweep(
    experiments: Sequence[Experiment],
    folders: Folders | None = None,
    *,
    data: Data | None = None,
    model: Model | None = None,
    at_once: int = 0,
    report: Report | None = None,
    stop: Stop | None = None,
) -> list[Outcome]:
    """Run all experiments, stack by stack; every run gives the numbers it gives alone.

    A folder that holds the same run, finished or stopped, is continued; a run that diverged is not repeated.

    Args:
        experiments: what to run.
        folders: one for each, for its records, checkpoints and models; None: nothing is written.
        data: the user's own data instead of `experiment.data.source`, as in `run`.
        model: the user's own module, or a function that makes one, as in `run`.
        at_once: at most this many runs in a stack; 0: as many as memory holds.
        report: called after every round of a stack.
        stop: called after every round; True saves the states and ends the sweep there.

    Returns:
        How each run ended, in the order of the experiments; those that never began are left out.

    Raises:
        InputError: an experiment cannot be run as it is, or a folder holds another run.
    """
    paths = _paths(experiments, folders)
    if sweep_on_devices(sweep, plan, experiments, paths, at_once, (data, model), report, stop):
        report = None  # all runs are done: only read their results
    outcomes: dict[int, Outcome] = {}
    for stack in plan(experiments, at_once, paths, data=data, model=model):
        prepared = _prepare([experiments[place] for place in stack], data, model)
        where = [paths[place] for place in stack]
        ended = _run_stack(prepared, where, naming(report, where), stop)
        outcomes.update(zip(stack, ended, strict=True))
        if stop is not None and stop():
            break
    return [outcomes[place] for place in sorted(outcomes)]


def plan(
    experiments: Sequence[Experiment],
    at_once: int = 0,
    folders: Folders | None = None,
    *,
    data: Data | None = None,
    model: Model | None = None,
) -> list[tuple[int, ...]]:
    """Which experiments run together, by their place: those of one shape and round, as many as memory holds.

    A run that diverged before is alone, at the end: nothing is left to compute.

    Args:
        experiments: in any order.
        at_once: at most this many in a stack; 0: as many as fit in half of the free memory.
        folders: of the runs, some of which may be half done.
        data: as in `sweep`.
        model: as in `sweep`.

    Raises:
        InputError: a folder is in use, or has checkpoints and none can be read.
    """
    groups: dict[Hashable, list[int]] = {}
    diverged: list[tuple[int, ...]] = []
    for place, (experiment, folder) in enumerate(zip(experiments, _paths(experiments, folders), strict=True)):
        checkpoint = _read_checkpoint_locked(folder)
        if checkpoint is not None and error_of(checkpoint):
            diverged.append((place,))
        else:
            rounds = 0 if checkpoint is None else checkpoint.round
            groups.setdefault((stack_key(experiment), rounds), []).append(place)
    stacks = []
    for places in groups.values():
        width = at_once or _runs_that_fit(experiments[places[0]], len(places), data, model)
        stacks += [tuple(places[first : first + width]) for first in range(0, len(places), width)]
    return stacks + diverged


def check_sweep(
    experiments: Sequence[Experiment],
    stacks: Sequence[tuple[int, ...]],
    folders: Folders | None = None,
    *,
    data: Data | None = None,
    model: Model | None = None,
) -> list[str]:
    """Check that every experiment can run, and in its folder, before the first folder is made.

    Returns:
        What to tell the user about data and models, each sentence once.

    Raises:
        InputError: an experiment cannot be run, or a folder holds another run.
    """
    paths = _paths(experiments, folders)
    resolved: dict[Hashable, Experiment] = {}
    notes: list[str] = []
    for stack in stacks:
        shape = stack_key(experiments[stack[0]])
        if shape not in resolved:
            # Two are enough to see whether they can be stacked.
            prepared = _prepare([experiments[place] for place in stack[:2]], data, model)
            resolved[shape] = prepared.experiment
            notes += [*prepared.federation.notes, *cautions_of(prepared)]
        for place in stack:
            known = with_data_of(experiments[place], resolved[shape])
            known = replace(known, model=resolved[shape].model)
            _check_folder(paths[place], known)
    return list(dict.fromkeys(notes))


def rounds_done(folder: Path | str) -> int:
    """The rounds in the last checkpoint of the run in a folder; 0 if there is none.

    Raises:
        InputError: it has checkpoints, and none can be read.
    """
    checkpoint = _read_checkpoint(Path(folder))
    return checkpoint.round if checkpoint else 0


def _paths(experiments: Sequence[Experiment], folders: Folders | None) -> list[Path | None]:
    """The folder of each experiment.

    Raises:
        InputError: one is no experiment.
    """
    for experiment in experiments:
        check_experiment(experiment)
    given = [None] * len(experiments) if folders is None else folders
    return [None if folder is None else Path(folder) for folder in given]


def _prepare(experiments: Sequence[Experiment], data: Data | None, model: Model | None) -> Prepared:
    """One experiment alone, or several as a stack."""
    if len(experiments) == 1:
        return prepare(experiments[0], data, model)
    return prepare_stack(experiments, data, model)


def _read_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint of the run in a folder; None if there is none, or no run."""
    if not holds_run(folder):
        return None
    return checkpoints.read(
        folder / "checkpoint",
        remedy=f"delete {folder}, and the same command repeats the run",
    )


def _read_checkpoint_locked(folder: Path | None) -> Checkpoint | None:
    """`_read_checkpoint` while no other process computes the run.

    Raises:
        InputError: one does.
    """
    if folder is None or not folder.is_dir():
        return None
    with locked(folder):
        return _read_checkpoint(folder)


def _check_folder(folder: Path | None, experiment: Experiment) -> bool:
    """Whether a folder holds this run already.

    Raises:
        InputError: it holds another one.
    """
    if folder is None:
        return False
    if not holds_run(folder):
        check_vacant(folder)
        return False
    check_same_run(folder, experiment)
    return True


def _run_stack(
    prepared: Prepared, folders: Sequence[Path | None], report: Report | None, stop: Stop | None
) -> list[Outcome]:
    """Compute a stack while its folders are locked."""
    with ExitStack() as locks:
        for folder in folders:
            if folder is not None:
                locks.enter_context(locked(folder))
        runs = _open_runs(prepared, folders)
        if not any(run.error for run in runs):
            return drive(prepared, runs, report, stop)
        if len(runs) > 1:
            raise _changed_meanwhile(folders)
        runs[0].state = prepared.simulator.state
        return conclude(prepared, runs)


def _open_runs(prepared: Prepared, folders: Sequence[Path | None]) -> list[RunInStack]:
    """The runs of a stack; the simulator is put into the state in which they stopped.

    Raises:
        InputError: they are not as the stack was planned.
    """
    found = [
        _read_checkpoint(folder) if folder is not None and _check_folder(folder, experiment) else None
        for folder, experiment in zip(folders, prepared.experiments, strict=True)
    ]
    states = [
        _restore(prepared, index, folder, checkpoint)
        for index, (folder, checkpoint) in enumerate(zip(folders, found, strict=True))
        if folder is not None and checkpoint is not None
    ]
    begun = [state for state in states if state.round]
    if len({state.round for state in begun}) > 1 or len(begun) not in (0, len(folders)):
        raise _changed_meanwhile(folders)
    if begun:
        prepared.simulator.state = begun[0] if len(begun) == 1 else State.stack(begun)
    runs = []
    for index, (folder, checkpoint) in enumerate(zip(folders, found, strict=True)):
        ended, error = False, error_of(checkpoint) if checkpoint is not None else None
        if folder is None:
            history = History()
        elif holds_run(folder):
            remove_temporary_files(folder, *SUBFOLDERS)
            counted = prepared.experiments[index].wire.count != "off"
            rounds = prepared.simulator.state.round
            ended = has_ended(prepared, index, folder, diverged=error is not None)
            history = open_history(folder, rounds, counted=counted, written=ended)
        else:
            history = create(prepared, index, folder)
        runs.append(RunInStack(index, history, folder, error=error, ended=ended))
    return runs


def _restore(prepared: Prepared, index: int, folder: Path, checkpoint: Checkpoint) -> State:
    """The state in which a run stopped, or diverged.

    Raises:
        InputError: it was computed with other data, or another model.
    """
    check_data_and_model(checkpoint, folder, prepared, index)
    return checkpoints.restored(prepared.simulator, checkpoint)


def _changed_meanwhile(folders: Sequence[Path | None]) -> InputError:
    named = ", ".join(str(folder) for folder in folders)
    return InputError(
        f"Another process continued a run in {named} while this sweep was running: run the same command "
        f"again."
    )


def _runs_that_fit(experiment: Experiment, wanted: int, data: Data | None, model: Model | None) -> int:
    """How many runs of this shape are stacked: as many as memory holds, at most `wanted`."""
    if wanted == 1:
        return 1
    prepared = prepare(experiment, data, model)
    federation = prepared.federation
    rows = sum(len(held) for held in (*federation.train, *federation.test, *federation.validation))
    return min(wanted, runs_that_fit(prepared.simulator.task, rows))

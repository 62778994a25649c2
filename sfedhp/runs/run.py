"""Run an experiment, and resume one that stopped."""

from __future__ import annotations

from pathlib import Path

from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment, check_experiment
from sfedhp.core.errors import InputError, StorageError
from sfedhp.core.files import locked, remove_temporary_files
from sfedhp.data.loading import ARRAYS
from sfedhp.runs import checkpoints
from sfedhp.runs import folder as folders
from sfedhp.runs.build import Model
from sfedhp.runs.compatibility import check_data_and_model, check_method, check_not_diverged, check_settings
from sfedhp.runs.completion import has_ended
from sfedhp.runs.federation import Data
from sfedhp.runs.loop import Report, RunInStack, Stop, drive, save_checkpoint
from sfedhp.runs.prepare import FROM_PYTHON, Prepared, prepare
from sfedhp.runs.provenance import flat
from sfedhp.runs.records import History
from sfedhp.runs.results import Outcome, Run


class DivergenceError(RuntimeError):
    """A value is no longer finite, or the training loss exploded; `run` has the last finite models."""

    def __init__(self, message: str, run: Run):
        super().__init__(message)
        self.run = run


def run(
    experiment: Experiment | None = None,
    *,
    data: Data | None = None,
    model: Model | None = None,
    out: Path | str | None = None,
    report: Report | None = None,
    stop: Stop | None = None,
) -> Run:
    """Run an experiment.

    Args:
        experiment: what to run; None: the defaults, on the embedded images.
        data: the user's own data instead of `experiment.data.source`: a `Federation`, a mapping of arrays
            named as in an npz (`inputs`, `labels`, optionally `client`, `edge` and `test`), or a torch
            `Dataset`.
        model: the user's own module, or a function that makes one, instead of `experiment.model.name`.
        out: a folder for records, checkpoints and models; None: nothing is written.
        report: called after every round.
        stop: called after every round; True saves the state and ends the run there.

    Raises:
        InputError: the experiment cannot be run as it is.
        DivergenceError: a value is no longer finite, or the training loss exploded.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        folders.check_vacant(folder)
    experiment = Experiment() if experiment is None else experiment
    check_experiment(experiment)
    prepared = prepare(experiment, data, model)
    return raise_if_diverged(start(prepared, folder, report, stop))


def resume(
    folder: Path | str,
    *,
    algorithm: Algorithm | None = None,
    data: Data | None = None,
    model: Model | None = None,
    report: Report | None = None,
    stop: Stop | None = None,
    salvage: bool = False,
) -> Run:
    """Continue a run that stopped, or was killed, to the same bits as an uninterrupted run.

    Args:
        folder: the run's.
        algorithm: the method, if it is the user's own.
        data: the data, if the run was started with data from Python.
        model: the module, if the run was started with one from Python.
        report: called after every round.
        stop: called after every round; True saves the state and ends the run there.
        salvage: continue from the newest checkpoint before the damage, if the history or the ledger is
            damaged; the damaged files are kept as `NAME.damaged`.

    Raises:
        InputError: there is nothing to resume, the history is damaged, or the settings or the data are not
            those of the run.
        DivergenceError: a value is no longer finite, or the training loss exploded.
    """
    outcome = restart(
        Path(folder), report, stop, algorithm=algorithm, data=data, model=model, salvage=salvage
    )
    return raise_if_diverged(outcome)


def raise_if_diverged(outcome: Outcome) -> Run:
    """The run of an outcome.

    Raises:
        DivergenceError: it diverged.
    """
    if outcome.error:
        raise DivergenceError(outcome.error, outcome.run)
    return outcome.run


def start(
    prepared: Prepared,
    folder: Path | None,
    report: Report | None,
    stop: Stop | None,
    *,
    rescue: Path | None = None,
) -> Outcome:
    """`run` for a prepared experiment: a divergence is an outcome like any other.

    Args:
        prepared: the experiment.
        folder: for what the run writes; None: nothing is written.
        report: called after every round.
        stop: called after every round; True saves the state and ends the run there.
        rescue: where to save the run if its folder cannot be written any more; None: nowhere.

    Raises:
        InputError: the folder cannot be written, or holds a run.
        StorageError: the folder cannot be written any more.
    """
    if folder is None:
        return drive(prepared, [RunInStack(0, History())], report, stop)[0]
    if rescue is not None:
        folders.check_vacant(rescue)
    with locked(folder):
        history = folders.create(prepared, 0, folder)
        try:
            return _drive_alone(prepared, history, folder, report, stop, rescue)
        except Exception:
            if history.last is None:
                folders.remove_created(folder)
            raise


def _drive_alone(
    prepared: Prepared,
    history: History,
    folder: Path,
    report: Report | None,
    stop: Stop | None,
    rescue: Path | None,
    *,
    ended: bool = False,
) -> Outcome:
    """Run the rounds that are left; where the folder cannot be written any more, save to `rescue`."""
    run = RunInStack(0, history, folder, ended=ended)
    with history.held():
        try:
            return drive(prepared, [run], report, stop)[0]
        except StorageError as error:
            if rescue is None or run.state is None or history.last is None:
                raise
            with locked(rescue):
                folders.create(prepared, 0, rescue)
                history.rescue(rescue)
                save_checkpoint(prepared, run, rescue)
            raise StorageError(
                f"{error} All {run.state.round} rounds are saved in {rescue}: continue with `sfedhp resume "
                f"{rescue}`."
            ) from error


def restart(
    folder: Path,
    report: Report | None,
    stop: Stop | None,
    *,
    algorithm: Algorithm | None = None,
    data: Data | None = None,
    model: Model | None = None,
    salvage: bool = False,
    rescue: Path | None = None,
) -> Outcome:
    """`resume`, where a divergence is an outcome like any other.

    Raises:
        InputError: there is nothing to resume, or the settings or the data are not those of the run.
        StorageError: the folder cannot be written any more.
    """
    if rescue is not None:
        folders.check_vacant(rescue)
    folders.read_config(folder)  # do not create a folder for a run that does not exist
    with locked(folder):
        counted = flat(folders.read_config(folder)).get("wire.count", "off") != "off"
        whole = folders.whole_rounds_of(folder, counted=counted) if salvage else None
        prepared = restore(folder, algorithm, data, model, whole)
        if salvage:
            folders.keep_damaged(folder, counted=counted)
        ended = has_ended(prepared, 0, folder)
        rounds = prepared.simulator.state.round
        history = folders.open_history(folder, rounds, counted=counted, written=ended)
        folders.add_schema(prepared, 0, folder)
        remove_temporary_files(folder, *folders.SUBFOLDERS)
        return _drive_alone(prepared, history, folder, report, stop, rescue, ended=ended)


def restore(
    folder: Path, algorithm: Algorithm | None, data: Data | None, model: Model | None, upto: int | None
) -> Prepared:
    """The run of a folder in the state of its last checkpoint, or of the last one up to a round."""
    config, checkpoint = folders.read_config(folder), checkpoints.read(folder / "checkpoint", upto=upto)
    if checkpoint is None and checkpoints.rounds_in(folder / "checkpoint"):
        raise InputError(
            f"{folder} has no checkpoint up to round {upto}, before the damage: start a new run."
        )
    if checkpoint is not None:
        check_not_diverged(checkpoint, folder)
        check_method(checkpoint, folder, config)
    experiment = folders.read_experiment(folder, algorithm)
    for what, missing in (
        ("data", experiment.data.source == ARRAYS and data is None),
        ("model", experiment.model.name == FROM_PYTHON and model is None),
    ):
        if missing:
            raise InputError(
                f"The {what} of {folder} came from Python: continue with sfedhp.resume(folder, {what}=...)."
            )
    if checkpoint is not None:
        check_settings(checkpoint, folder, experiment, algorithm)
    prepared = prepare(experiment, data, model)
    if checkpoint is not None:
        check_data_and_model(checkpoint, folder, prepared)
        prepared.simulator.state = checkpoints.restored(prepared.simulator, checkpoint)
    return prepared

"""Run an experiment, and go on with one that stopped."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment, from_dict, to_dict, to_toml
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked, remove_temporary_files, write_text
from sfedhp.data.federation import ARRAYS
from sfedhp.runs import checkpoints
from sfedhp.runs.build import Model
from sfedhp.runs.checkpoints import Checkpoint
from sfedhp.runs.environment import environment
from sfedhp.runs.loop import Outcome, Report, Run, Stop, drive
from sfedhp.runs.prepare import FROM_PYTHON, Data, Prepared, prepare
from sfedhp.runs.provenance import METHOD, SOURCE, anatomy, contrast, difference, fingerprint, flat
from sfedhp.runs.records import History, rows_of_run


class DivergenceError(RuntimeError):
    """A quantity left the finite numbers or exploded; `run` holds the last finite models and the history."""

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
        experiment: what to run; the embedded default without one.
        data: the user's own data instead of `experiment.data.source` (see `prepare`).
        model: the user's own module, or a function that makes one, instead of `experiment.model.name`.
        out: a folder for records, checkpoints and models; None: nothing is written.
        report: called after every round.
        stop: asked after every round; True saves the state and ends the run there.

    Raises:
        InputError: the experiment cannot be run as it is.
        DivergenceError: a value left the finite numbers, or the training loss exploded.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        check_vacant(folder)
    prepared = prepare(experiment or Experiment(), data, model)
    return start(prepared, folder, report, stop)


def start(prepared: Prepared, folder: Path | None, report: Report | None, stop: Stop | None) -> Run:
    """Run what is prepared, in a new folder.

    Raises:
        InputError: the folder cannot be written, or holds a run.
        DivergenceError: a value left the finite numbers, or the training loss exploded.
    """
    if folder is None:
        return _sound(drive(prepared, [History()], [None], report, stop)[0])
    with locked(folder):
        history = new_folder(prepared, 0, folder)
        try:
            (ended,) = drive(prepared, [history], [folder], report, stop)
        except Exception:
            if not history.rows:
                _vacate(folder)
            raise
    return _sound(ended)


def check_vacant(folder: Path) -> None:
    """Refuse a folder that already holds a run, before any time is spent on data.

    Raises:
        InputError: it does, or it is not a folder.
    """
    if (folder / "config.toml").exists():
        raise InputError(
            f"{folder} already holds a run: choose another folder, or go on with `sfedhp resume {folder}`."
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose a folder.")


def _vacate(folder: Path) -> None:
    """Take back what `new_folder` furnished: no round was done, so there is nothing to go on with."""
    for name in ("config.toml", "environment.json", "history.jsonl"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it holds something else, which stays
        folder.rmdir()


def new_folder(prepared: Prepared, index: int, folder: Path) -> History:
    """Furnish a folder for the run of this index, with all but its results.

    Args:
        prepared: the run, or the stack it is in.
        index: its place there.
        folder: held by this process, so that no two find it vacant.

    Raises:
        InputError: the folder cannot be written, or holds a run.
    """
    check_vacant(folder)
    try:
        # Checkpoints of an old run would count as later ones than the first of this.
        for old in folder.glob("checkpoint/round-*.safetensors"):
            old.unlink()
        write_text(folder / "environment.json", json.dumps(_environment(prepared), indent=2) + "\n")
        write_text(folder / "config.toml", to_toml(to_dict(prepared.experiments[index])))
        return History(folder / "history.jsonl")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from None


def _environment(prepared: Prepared) -> dict[str, Any]:
    simulator = prepared.simulator
    return environment(
        simulator.initial.device,
        simulator.task.network.d,
        runs_at_once=len(prepared.experiments),
        clients_at_once=simulator.clients_at_once,
        gradients=str(simulator.task.gradient_path),
        captured=str(simulator.graph_status),
    )


def resume(
    folder: Path | str,
    *,
    algorithm: Algorithm | None = None,
    data: Data | None = None,
    model: Model | None = None,
    report: Report | None = None,
    stop: Stop | None = None,
) -> Run:
    """Go on where a run stopped, or was killed, to the same bits as an unbroken run.

    Args:
        folder: the run's.
        algorithm: the method, where it is the user's own.
        data: the data, where the run began with the user's own from Python.
        model: the module, where the run began with the user's own from Python.
        report: called after every round.
        stop: asked after every round; True saves the state and ends the run there.

    Raises:
        InputError: there is nothing to go on with, or the settings or the data are not those of the run.
        DivergenceError: a value left the finite numbers, or the training loss exploded.
    """
    folder = Path(folder)
    read_config(folder)  # no folder is made where there is no run
    with locked(folder):
        prepared = _restored(folder, algorithm, data, model)
        path = folder / "history.jsonl"
        history = History(path, rows_of_run(path, prepared.simulator.state.round))
        remove_temporary_files(folder)
        return _sound(drive(prepared, [history], [folder], report, stop)[0])


def _restored(folder: Path, algorithm: Algorithm | None, data: Data | None, model: Model | None) -> Prepared:
    """The run of a folder, where it stopped."""
    config, found = read_config(folder), checkpoints.read(folder / "checkpoint")
    if found is not None:
        _check_not_diverged(found, folder)
        _check_method(found, folder, config)
    experiment = read_experiment(folder, algorithm)
    for what, missing in (
        ("data", experiment.data.source == ARRAYS and data is None),
        ("model", experiment.model.name == FROM_PYTHON and model is None),
    ):
        if missing:
            raise InputError(
                f"The {what} of {folder} came from Python: go on with sfedhp.resume(folder, {what}=...)."
            )
    if found is not None:
        _check_settings(found, folder, experiment, algorithm)
    prepared = prepare(experiment, data, model)
    if found is not None:
        check_belongs(found, folder, prepared)
        prepared.simulator.state = checkpoints.restored(prepared.simulator, found)
    return prepared


def read_config(folder: Path) -> dict[str, Any]:
    """The tables of a run's config, as they stand in its file.

    Raises:
        InputError: the folder holds no run, or its config cannot be read.
    """
    path = folder / "config.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} holds no run: there is no config.toml in it.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): mend it, or put it back from a copy.") from None


def read_experiment(folder: Path, algorithm: Algorithm | None = None) -> Experiment:
    """The experiment a folder's run was started with; its method given where it is the user's own.

    Raises:
        InputError: the folder holds no run, or its config cannot be read.
    """
    config = read_config(folder)
    try:
        return _experiment(config, algorithm)
    except InputError as error:
        raise InputError(f"In {folder / 'config.toml'}: {error}") from None


def _experiment(config: Mapping[str, Any], algorithm: Algorithm | None) -> Experiment:
    """The experiment of a run's config; its method given where it is the user's own."""
    if algorithm is None:
        return from_dict(config)
    known = {name: value for name, value in config.items() if name != "algorithm"}
    return replace(from_dict(known), algorithm=algorithm)


def _check_not_diverged(found: Checkpoint, folder: Path) -> None:
    """Refuse to go on with a run that diverged: from the same state it would do so again."""
    # Runs of before this was written down have a checkpoint of round 0 where the first round diverged.
    trouble = found.about.get("trouble") or (None if found.round else "diverged in round 1")
    if trouble:
        raise InputError(
            f"The run in {folder} {trouble}; there is nothing to resume: start a new run with smaller rates "
            f"(`sfedhp check {folder / 'config.toml'}` shows what is too large)."
        )


def _check_method(found: Checkpoint, folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse another method than the run's, before anything is said about the keys that it has."""
    here, then = flat(config).get(METHOD), flat(found.about.get("config", config)).get(METHOD)
    if here != then:
        raise _changed(folder, contrast(METHOD, here, then))


def _check_settings(
    found: Checkpoint, folder: Path, experiment: Experiment, algorithm: Algorithm | None
) -> None:
    """Refuse a config.toml that was changed in what decides the numbers, and one with too few rounds."""
    path = folder / "config.toml"
    then = found.about.get("config")
    if then is not None:
        # What a later version added has its default; a user's own method is known by its table alone.
        before = to_dict(_experiment(then, algorithm))
        before |= {"algorithm": then["algorithm"]} if algorithm is not None else {}
        here = json.loads(json.dumps(to_dict(experiment)))  # as a file has it
        if changed := difference(here, before):
            raise _changed(folder, changed)
    if experiment.rounds < found.round:
        raise InputError(
            f"{path} has rounds = {experiment.rounds}, but {found.round} rounds are done: set at least that."
        )


def check_belongs(found: Checkpoint, folder: Path, prepared: Prepared, run: int = 0) -> None:
    """Refuse data or a model that is not what a checkpoint was computed with.

    Args:
        found: the checkpoint. One that was written before it said so is taken on trust.
        folder: of its run.
        prepared: the run, or the stack it is in.
        run: its place there.

    Raises:
        InputError: names what differs.
    """
    about, source = found.about, prepared.experiments[run].data.source
    if about.get("data") not in (None, fingerprint(prepared.federations[run])):
        before = about["config"]["data"]["source"]
        if source != before:
            raise _changed(folder, contrast(SOURCE, source, before))
        raise InputError(
            f"The data of {source} is not what the run in {folder} was computed with: put the old data back, "
            f"or start a new run."
        )
    # The user's own module may have been edited.
    if about.get("model") not in (None, anatomy(prepared.simulator.task.network)):
        raise InputError(
            f"The model {prepared.experiment.model.name} is not the one of the run in {folder}: put its "
            f"layers and fixed values back, or start a new run."
        )


def _changed(folder: Path, what: str) -> InputError:
    return InputError(f"{folder / 'config.toml'} has {what}: put that back, or start a new run.")


def _sound(outcome: Outcome) -> Run:
    if outcome.trouble:
        raise DivergenceError(outcome.trouble, outcome.run)
    return outcome.run

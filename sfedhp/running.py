"""Run an experiment, and go on with one that stopped."""

from __future__ import annotations

import json
import platform
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch

import sfedhp
from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment, from_dict, to_dict, to_toml
from sfedhp.driving import Outcome, Report, Run, Stop, drive
from sfedhp.preparation import ARRAYS, FROM_PYTHON, Data, Model, Prepared, prepare
from sfedhp.runs import checkpoints
from sfedhp.runs.files import sweep_up, write_text
from sfedhp.runs.records import History, read_rows
from sfedhp.types import InputError


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
    """Run what is prepared, in a new folder."""
    history = History() if folder is None else new_folder(prepared, 0, folder)
    return _sound(drive(prepared, [history], [folder], _checkpoint(folder), report, stop)[0])


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


def new_folder(prepared: Prepared, index: int, folder: Path) -> History:
    """A folder for the run of this index, with all but its results.

    Raises:
        InputError: the folder cannot be written, or holds a run.
    """
    check_vacant(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "environment.json", json.dumps(environment(prepared), indent=2) + "\n")
        write_text(folder / "config.toml", to_toml(to_dict(prepared.experiments[index])))
        return History(folder / "history.jsonl")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from None


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
    """
    folder = Path(folder)
    experiment = read_experiment(folder, algorithm)
    for what, missing in (
        ("data", experiment.data.source == ARRAYS and data is None),
        ("model", experiment.model.name == FROM_PYTHON and model is None),
    ):
        if missing:
            raise InputError(
                f"The {what} of {folder} came from Python: go on with sfedhp.resume(folder, {what}=...)."
            )
    prepared = prepare(experiment, data, model)
    sweep_up(folder)
    state = checkpoints.load(prepared.simulator, folder / "checkpoint")
    if state is not None:
        prepared.simulator.state = state
    rows = read_rows(folder / "history.jsonl", prepared.simulator.state.round)
    history = History(folder / "history.jsonl", rows)
    return _sound(drive(prepared, [history], [folder], _checkpoint(folder), report, stop)[0])


def read_experiment(folder: Path, algorithm: Algorithm | None = None) -> Experiment:
    """The experiment a folder's run was started with; its method given where it is the user's own.

    Raises:
        InputError: the folder holds no run, or its config cannot be read.
    """
    path = folder / "config.toml"
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        if algorithm is None:
            return from_dict(config)
        del config["algorithm"]
        return replace(from_dict(config), algorithm=algorithm)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} holds no run: there is no config.toml in it.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({error}): start the run anew.") from None


def _sound(outcome: Outcome) -> Run:
    if outcome.trouble:
        raise DivergenceError(outcome.trouble, outcome.run)
    return outcome.run


def _checkpoint(folder: Path | None) -> Path | None:
    return None if folder is None else folder / "checkpoint"


def environment(prepared: Prepared) -> dict[str, Any]:
    """Where and how it runs."""
    simulator = prepared.simulator
    device = simulator.initial.device
    return {
        "sfedhp": sfedhp.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "parameters": simulator.task.network.d,
        "runs_at_once": len(prepared.experiments),
        "clients_at_once": simulator.clients_at_once,
        "gradients": simulator.task.gradients,
        "captured": simulator.captured,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }

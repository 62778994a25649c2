"""Run an experiment, and go on with one that stopped."""

from __future__ import annotations

import json
import platform
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import safetensors
import torch
from torch import Tensor, nn

import sfedhp
from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment, from_dict, to_dict, to_toml
from sfedhp.preparation import ARRAYS, FROM_PYTHON, Data, Model, Prepared, prepare
from sfedhp.runs import checkpoints
from sfedhp.runs.artifacts import Models
from sfedhp.runs.files import write_text
from sfedhp.runs.records import History, Row, read_rows, summarize
from sfedhp.simulator import State
from sfedhp.types import InputError
from sfedhp.vectors import tree_map
from sfedhp.wire.ledger import columns

EXPLOSION = 100  # a training loss so many times the first evaluated one is a divergence


class Progress(NamedTuple):
    """What is known after a round."""

    row: Row  # the round's row of the history; of a stack, the first run's
    rounds: int  # how many there will be


Report = Callable[[Progress], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Run:
    """A run that ended: finished, or stopped between two rounds."""

    experiment: Experiment  # as resolved
    history: list[Row]  # a row a round
    models: Models
    folder: Path | None
    finished: bool

    @property
    def summary(self) -> Row:
        """The final figures, one flat object."""
        return {
            "algorithm": self.experiment.algorithm_name,
            "source": self.experiment.data.source,
            "seed": self.experiment.seed,
            **summarize(self.history, self.experiment.evaluation.norm_statistics),
            "finished": self.finished,
            "folder": None if self.folder is None else str(self.folder),
        }

    @property
    def global_model(self) -> nn.Module | None:
        """w."""
        return self.models.global_model()

    @property
    def edge_models(self) -> list[nn.Module | None]:
        """The model of each edge."""
        return [self.models.edge_model(edge) for edge in range(self.experiment.edges)]

    @property
    def client_models(self) -> list[list[nn.Module | None]]:
        """The model of each client, by edge and seat."""
        return [
            [self.models.client_model(edge, seat) for seat in range(self.experiment.clients_per_edge)]
            for edge in range(self.experiment.edges)
        ]


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
    if folder is not None and (folder / "config.toml").exists():
        raise InputError(
            f"{folder} already holds a run: choose another folder, or go on with `sfedhp resume`."
        )
    prepared = prepare(experiment or Experiment(), data, model)
    return start(prepared, folder, report, stop)


def start(prepared: Prepared, folder: Path | None, report: Report | None, stop: Stop | None) -> Run:
    """Run what is prepared, in a new folder."""
    history = History() if folder is None else new_folder(prepared, 0, folder)
    return _sound(drive(prepared, [history], [folder], _checkpoint(folder), report, stop)[0])


def new_folder(prepared: Prepared, index: int, folder: Path) -> History:
    """A folder for the run of this index, with all but its results.

    Raises:
        InputError: the folder cannot be written, or holds a run.
    """
    if (folder / "config.toml").exists():
        raise InputError(
            f"{folder} already holds a run: choose another folder, or go on with `sfedhp resume`."
        )
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


class Outcome(NamedTuple):
    """How a run ended."""

    run: Run
    trouble: str | None  # what diverged, in a sentence


def drive(
    prepared: Prepared,
    histories: Sequence[History],
    folders: Sequence[Path | None],
    checkpoint: Path | None,
    report: Report | None,
    stop: Stop | None,
) -> list[Outcome]:
    """The caller's side of the loop, for one run or a stack: evaluate, record, checkpoint.

    A run of a stack that diverges ends there, with its last finite models; the others go on.
    """
    experiment, simulator = prepared.experiment, prepared.simulator
    rounds, runs = experiment.rounds, range(len(histories))
    troubles: dict[int, str] = {}
    states = dict.fromkeys(runs, simulator.state)  # the last good one of each run
    began = time.perf_counter()
    for state in simulator.run(rounds):
        finite = _finite(state, simulator.runs)
        for run in set(runs) - troubles.keys():
            if finite[run] is None:
                states[run] = state
            else:
                troubles[run] = (
                    f"diverged in round {state.round}: {finite[run]} has values that are not finite"
                )
        rows: list[Row] = [{"round": state.round} for _ in runs]
        if len(troubles) < len(runs):
            _record(prepared, state, rows)
        now = time.perf_counter()
        seconds, began = (now - began) / len(runs), now
        for run in set(runs) - troubles.keys():
            histories[run].append({**rows[run], "seconds": seconds})
            exploded = _exploded(histories[run].rows)
            if exploded:
                troubles[run] = exploded
        asked = stop is not None and stop()
        if checkpoint is not None and state.round % experiment.checkpoint.every == 0 and state.round < rounds:
            checkpoints.save(simulator.state, checkpoint)
        if report is not None and histories[0].rows:
            report(Progress(histories[0].rows[-1], rounds))
        if asked or len(troubles) == len(runs):
            break
    if len(runs) == 1:
        simulator.state = states[0]
    if checkpoint is not None:
        checkpoints.save(simulator.state, checkpoint)
    return [
        _ended(prepared, run, states[run], histories[run], folders[run], troubles.get(run)) for run in runs
    ]


def _record(prepared: Prepared, state: State, rows: list[Row]) -> None:
    """The round's figures for each run."""
    experiment, simulator = prepared.experiment, prepared.simulator
    if state.round % experiment.evaluation.every == 0 or state.round == experiment.rounds:
        for row, figures in zip(rows, prepared.evaluator.measure(), strict=True):
            row |= figures
    sums = columns(simulator.ledger.close(), simulator.initial.shape[-1], simulator.runs)
    for name, totals in sums.items():
        for row, total in zip(rows, totals.reshape(-1).tolist(), strict=True):
            row[name] = total


def _ended(
    prepared: Prepared, run: int, state: State, history: History, folder: Path | None, trouble: str | None
) -> Outcome:
    experiment, simulator = prepared.experiments[run], prepared.simulator
    history.close()
    index = (run,) if simulator.runs else ()
    models = Models(simulator, state, experiment.edges, experiment.clients_per_edge, index)
    if folder is not None:
        models.save(folder / "models")
    if trouble:
        trouble = f"{trouble}; the models of round {state.round} are kept."
    finished = state.round == experiment.rounds and not trouble
    return Outcome(Run(experiment, history.rows, models, folder, finished), trouble)


def _sound(outcome: Outcome) -> Run:
    if outcome.trouble:
        raise DivergenceError(outcome.trouble, outcome.run)
    return outcome.run


def _checkpoint(folder: Path | None) -> Path | None:
    return None if folder is None else folder / "checkpoint"


def _finite(state: State, axes: int) -> list[str | None]:
    """For each run the first quantity with a value that is not finite; None where all are."""
    found: list[str | None] = []
    for name, tree in (("the cloud's model", state.served), ("a client's model", state.personal)):
        flags: list[Tensor] = []
        tree_map(lambda tensor, flags=flags: flags.append(_all_finite(tensor, axes)), tree)
        if flags:
            good = torch.stack(flags).all(0).reshape(-1).tolist()
            found = found or [None] * len(good)
            found = [seen or (None if fine else name) for seen, fine in zip(found, good, strict=True)]
    return found


def _all_finite(tensor: Tensor, axes: int) -> Tensor:
    finite = tensor.isfinite()
    return finite.flatten(axes).all(-1) if finite.ndim > axes else finite


def _exploded(rows: list[Row]) -> str | None:
    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    if losses and "train_loss" in rows[-1] and not losses[-1] <= EXPLOSION * losses[0]:
        return (
            f"diverged in round {rows[-1]['round']}: the training loss went from {losses[0]:.3g} "
            f"to {losses[-1]:.3g}, more than {EXPLOSION} times the first"
        )
    return None


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
        "clients_at_once": simulator.clients_at_once or simulator.task.lead[-1],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }

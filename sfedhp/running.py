"""Run an experiment, and go on with one that stopped."""

from __future__ import annotations

import json
import platform
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import safetensors
import torch
from torch import nn

import sfedhp
from sfedhp.config import Experiment, from_dict, to_dict, to_toml
from sfedhp.preparation import Data, Model, Prepared, prepare
from sfedhp.runs import checkpoints
from sfedhp.runs.artifacts import Models
from sfedhp.runs.files import write_text
from sfedhp.runs.records import History, Row, read_rows, summarize
from sfedhp.simulator import State
from sfedhp.types import InputError
from sfedhp.vectors import tree_map

EXPLOSION = 100  # a training loss so many times the first evaluated one is a divergence


class Progress(NamedTuple):
    """What is known after a round."""

    row: Row  # the round's row of the history
    rounds: int  # how many there will be


Report = Callable[[Progress], None]


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
    stop: Callable[[], bool] | None = None,
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


def start(
    prepared: Prepared, folder: Path | None, report: Report | None, stop: Callable[[], bool] | None
) -> Run:
    """Run what is prepared, in a new folder."""
    history = None
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "environment.json", json.dumps(_environment(prepared), indent=2) + "\n")
            write_text(folder / "config.toml", to_toml(to_dict(prepared.experiment)))
            history = History(folder / "history.jsonl")
        except OSError as error:
            raise InputError(
                f"{folder} cannot be written ({error.strerror}): choose another folder."
            ) from None
    return _drive(prepared, folder, history or History(), report, stop)


def resume(
    folder: Path | str,
    *,
    data: Data | None = None,
    model: Model | None = None,
    report: Report | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Go on where a run stopped, or was killed, to the same bits as an unbroken run.

    Args:
        folder: the run's.
        data: the data, where the run began with the user's own from Python.
        model: the module, where the run began with the user's own from Python.
        report: called after every round.
        stop: asked after every round; True saves the state and ends the run there.
    """
    folder = Path(folder)
    experiment = read_experiment(folder)
    if experiment.data.source == "arrays" and data is None:
        raise InputError(
            f"The data of {folder} came from Python: go on with sfedhp.resume(folder, data=...)."
        )
    prepared = prepare(experiment, data, model)
    state = checkpoints.load(prepared.simulator, folder / "checkpoint")
    if state is not None:
        prepared.simulator.state = state
    rows = read_rows(folder / "history.jsonl", prepared.simulator.state.round)
    return _drive(prepared, folder, History(folder / "history.jsonl", rows), report, stop)


def read_experiment(folder: Path) -> Experiment:
    """The experiment a folder's run was started with.

    Raises:
        InputError: the folder holds no run, or its config cannot be read.
    """
    path = folder / "config.toml"
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        return from_dict(config)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder} holds no run: there is no config.toml in it.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({error}): start the run anew.") from None


def _drive(
    prepared: Prepared,
    folder: Path | None,
    history: History,
    report: Report | None,
    stop: Callable[[], bool] | None,
) -> Run:
    """The caller's side of the loop: evaluate, record, checkpoint."""
    experiment, simulator = prepared.experiment, prepared.simulator
    rounds, trouble = experiment.rounds, None
    before, began = simulator.state, time.perf_counter()
    for state in simulator.run(rounds):
        trouble = _not_finite(state)
        if trouble:
            simulator.state = before  # the last finite one
            break
        row: Row = {"round": state.round}
        if state.round % experiment.evaluation.every == 0 or state.round == rounds:
            row |= prepared.evaluator.measure()[0]
        booked = simulator.ledger.close()
        row |= {f"bytes_{direction}": int(total) for direction, total in booked.items()}
        now = time.perf_counter()
        row["seconds"], began = now - began, now
        history.append(row)
        trouble = _exploded(history.rows)
        asked = stop is not None and stop()
        if folder is not None and state.round % experiment.checkpoint.every == 0 and state.round < rounds:
            checkpoints.save(state, folder / "checkpoint")
        if report is not None:
            report(Progress(row, rounds))
        if asked or trouble:
            break
        before = state
    history.close()
    models = Models(simulator, experiment.edges, experiment.clients_per_edge)
    if folder is not None:
        checkpoints.save(simulator.state, folder / "checkpoint")
        models.save(folder / "models")
    finished = simulator.state.round == rounds and not trouble
    result = Run(experiment, history.rows, models, folder, finished)
    if trouble:
        raise DivergenceError(f"{trouble}; the models of round {simulator.state.round} are kept.", result)
    return result


def _not_finite(state: State) -> str | None:
    """Names the first quantity with a value that is not finite."""
    held = {"the cloud's model": state.served, "a client's model": state.personal}
    for name, tree in held.items():
        if not _finite(tree):
            return f"diverged in round {state.round}: {name} has values that are not finite"
    return None


def _finite(tree: Any) -> bool:
    found: list[bool] = []
    tree_map(lambda tensor: found.append(bool(tensor.isfinite().all())), tree)
    return all(found)


def _exploded(rows: list[Row]) -> str | None:
    losses = [row["train_loss"] for row in rows if "train_loss" in row]
    if losses and "train_loss" in rows[-1] and not losses[-1] <= EXPLOSION * losses[0]:
        return (
            f"diverged in round {rows[-1]['round']}: the training loss went from {losses[0]:.3g} "
            f"to {losses[-1]:.3g}, more than {EXPLOSION} times the first"
        )
    return None


def _environment(prepared: Prepared) -> dict[str, Any]:
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
        "clients_at_once": simulator.clients_at_once or simulator.task.lead[-1],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }

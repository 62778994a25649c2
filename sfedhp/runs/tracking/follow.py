"""Follows the folders of runs, and sends new rows and models to trackers."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sfedhp.core.errors import InputError, Note
from sfedhp.core.files import write_atomically
from sfedhp.core.imports import reason_of
from sfedhp.core.parsing import parse_json
from sfedhp.runs.folder import holds_run, read_config
from sfedhp.runs.loop import Progress, Report
from sfedhp.runs.provenance import flat
from sfedhp.runs.record_file import Row
from sfedhp.runs.tracking.mlflow import MLflow
from sfedhp.runs.tracking.tensorboard import TensorBoard
from sfedhp.runs.tracking.tracker import Subject, Tracker
from sfedhp.runs.tracking.wandb import WandB

TRACKERS: Final[dict[str, Callable[[Subject, str | None], Tracker]]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
_STATE: Final = "tracking.json"  # in the folder of a run: its id in each tracker, and the rounds there


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not known or not installed, before anything is run.

    Raises:
        InputError: names the tracker, and what to do.
    """
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"--track: there is no tracker {name!r}: use {', '.join(TRACKERS)}.")
        if find_spec(name) is None:
            raise InputError(f"--track {name}: it is not installed: pip install 'sfedhp[{name}]'.")


class Tracking:
    """The trackers of the runs of one command.

    They read the folders of the runs. So you can also send a run to a tracker later; it gets all rounds that
    it does not have. A tracker that fails is left out with a message, and the runs continue.
    """

    def __init__(self, names: Sequence[str] = (), folders: Sequence[Path] = ()):
        self._names = names
        self._runs: dict[Path, _TrackedRun] = {}
        self.add(*folders)

    def add(self, *folders: Path) -> None:
        """Follow these folders too; their runs need not have begun."""
        if self._names:
            self._runs |= {folder: _TrackedRun(folder, self._names) for folder in folders}

    @contextmanager
    def follow(self, report: Report) -> Iterator[Report]:
        """A report that also updates the trackers; at the end they get the models, and are closed."""

        def report_and_update(progress: Progress) -> None:
            report(progress)
            self.update()

        try:
            yield report_and_update
        finally:
            self.close()

    def update(self) -> None:
        """Send what is new; to be called after every round."""
        with _notes_alone():
            for run in self._runs.values():
                run.update()

    def close(self) -> None:
        """Send what is new, and that this command does no more of these runs."""
        self.update()
        with _notes_alone():
            for run in self._runs.values():
                run.close()
        self._runs.clear()


class _TrackedRun:
    """The folder of a run, and its trackers."""

    def __init__(self, folder: Path, names: Sequence[str]):
        self._folder, self._names = folder, names
        self._history = _Tail(folder / "history.jsonl")
        self._trackers: dict[str, Tracker] = {}
        self._state: dict[str, Any] = {}
        self._rounds = 0  # of the whole run; 0: it has not begun
        self._done = 0

    def update(self) -> None:
        if not holds_run(self._folder):
            return
        if not self._rounds:
            self._open()
        for row in self._history.new():
            self._done = max(self._done, row["round"])
            for name in list(self._trackers):
                self._log(name, row)
        self._save()

    def close(self) -> None:
        for name, tracker in self._trackers.items():
            with self._left_out(name):
                tracker.end(finished=self._done == self._rounds)
        self._trackers.clear()

    def _open(self) -> None:
        config = flat(read_config(self._folder))
        self._rounds = config["rounds"]
        toml = (self._folder / "config.toml").read_text(encoding="utf-8")
        subject = Subject(self._folder, "/".join(self._folder.absolute().parts[-2:]), config, toml)
        self._state = _read_state(self._folder / _STATE)
        for name in self._names:
            known = self._state.setdefault(name, {"id": None, "round": 0})
            with self._left_out(name):
                self._trackers[name] = TRACKERS[name](subject, known["id"])
                known["id"] = self._trackers[name].id

    def _log(self, name: str, row: Row) -> None:
        """Log a row, unless the tracker has that round already."""
        if row["round"] > self._state[name]["round"]:
            with self._left_out(name):
                self._trackers[name].log(row["round"], _numbers(row))
                self._state[name]["round"] = row["round"]

    @contextmanager
    def _left_out(self, name: str) -> Iterator[None]:
        """Leave out a tracker that raises an error."""
        try:
            yield
        except Exception as error:  # the packages have many errors of their own
            self._trackers.pop(name, None)
            warnings.warn(
                f"--track {name}: {reason_of(error)}. The run continues without it. To add what is missing "
                f"later, continue the run with --track {name}, even if it is finished.",
                Note,
                stacklevel=2,
            )

    def _save(self) -> None:
        text = json.dumps(self._state) + "\n"
        write_atomically(self._folder / _STATE, lambda beside: beside.write_text(text), durable=False)


class _Tail:
    """The rows of a history that is being written, each once."""

    def __init__(self, path: Path):
        self._path, self._inode, self._read = path, 0, 0

    def new(self) -> Iterator[Row]:
        """The rows that are new and whole; all of them again if the file was replaced."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            inode = self._path.stat().st_ino
            if inode != self._inode:
                self._inode, self._read = inode, 0
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield parse_json(line)


def _numbers(row: Row) -> dict[str, float]:
    """The values of a row for a tracker: its finite numbers, without the round."""
    return {
        name: float(value)
        for name, value in row.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }


def _read_state(path: Path) -> dict[str, Any]:
    """The stored state of each tracker; empty if the file is missing or cannot be read."""
    try:
        known = parse_json(path.read_bytes())
        return {name: {"id": each["id"], "round": int(each["round"])} for name, each in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


@contextmanager
def _notes_alone() -> Iterator[None]:
    """A context without the warnings of the trackers' packages, such as deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", category=Note)
        yield

"""A run as recorded in its folder: its config, its progress and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfedhp.core.edge_sizes import edge_sizes
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.nn.problems import Problem, problem_of
from sfedhp.runs.checkpoints import read_about
from sfedhp.runs.folder import holds_run, read_config, read_history
from sfedhp.runs.hints import hints
from sfedhp.runs.provenance import METHOD, SOURCE, flat
from sfedhp.runs.record_file import Row
from sfedhp.runs.records import summarize
from sfedhp.runs.score_files import read_scores
from sfedhp.runs.scores import Scores

_KINDS = {METHOD: str, SOURCE: str, "clients_per_edge": int | list}  # types in config.toml; of others int


@dataclass(frozen=True)
class RecordedRun:
    """The content of a run's files."""

    folder: Path
    config: Mapping[str, Any]  # keys with their tables before them, as `algorithm.name`
    history: list[Row]
    scores: Scores | None  # None if the folder has none
    error: str | None  # what diverged

    @property
    def rounds_done(self) -> int:
        """The last round of the history."""
        return self.history[-1]["round"] if self.history else 0

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, and none diverged."""
        return self.rounds_done == self.config["rounds"] and not self.error

    @property
    def clients(self) -> int:
        """How many clients there are; of a folder without scores, how many seats."""
        if self.scores is not None:
            return len(self.scores.clients)
        return sum(edge_sizes(self.config["edges"], self.config["clients_per_edge"]))

    @property
    def sentence(self) -> str:
        """A sentence on what was run, and how it ended."""
        return self.sentence_on(self.config[SOURCE])

    def sentence_on(self, source: str) -> str:
        """`sentence` with another name for the data."""
        config, rounds = self.config, self.config["rounds"]
        end = f", {self.rounds_done} done" if not self.finished and not self.error else ""
        diverged = f"; {self.error}" if self.error else ""
        return (
            f"{config[METHOD]} on {source}: {counted(config['edges'], 'edge')} with "
            f"{counted(self.clients, 'client')}, {counted(rounds, 'round')}{end}, "
            f"seed {config['seed']}{diverged}."
        )

    @property
    def problem(self) -> Problem:
        """The problem that the run solved; earlier versions solved only classification."""
        return problem_of(self.config.get("problem", "auto"))

    @property
    def summary(self) -> Row:
        """The final metrics, with the keys of `Run.summary`."""
        return {
            "algorithm": self.config[METHOD],
            "source": self.config[SOURCE],
            "seed": self.config["seed"],
            **summarize(
                self.history, self.config.get("evaluation.norm_statistics", "averaged"), self.problem
            ),
            "finished": self.finished,
            "folder": str(self.folder),
        }

    @property
    def missing_scores(self) -> str | None:
        """A sentence on why the folder has no scores of clients; None if it has them."""
        if self.scores is not None:
            return None
        if (self.folder / "run.json").exists():
            return "The cloud of a deployment does not learn the figures of single clients."
        if not (self.folder / "models").exists():
            return "The run has not ended: the figures of each client are written when it ends or is stopped."
        again = "" if self.error else f"; `sfedhp resume {self.folder}` adds them"
        return f"An earlier version wrote this folder, without the figures of each client{again}."

    @property
    def hints(self) -> list[str]:
        """The hints on the results; none if the run diverged."""
        return [] if self.error else hints(self.history, self.scores, finished=self.finished)


def read_run(folder: Path) -> RecordedRun:
    """The run in a folder.

    Raises:
        InputError: it holds no run, or one of its files cannot be read.
    """
    config, history = flat(read_config(folder)), read_history(folder)
    missing = [
        key
        for key in ("rounds", "edges", "clients_per_edge", "seed", METHOD, SOURCE)
        if not isinstance(config.get(key), _KINDS.get(key, int))
    ]
    if history is None or missing:
        lacks = "history.jsonl" if history is None else f"{missing[0]} in its config.toml"
        raise InputError(f"{folder} holds no run: there is no {lacks}.")
    error = read_about(folder / "checkpoint").get("trouble")
    return RecordedRun(folder, config, history, read_scores(folder), error)


def run_folders(folder: Path) -> list[Path]:
    """The folders of the runs of a sweep or a comparison, by name.

    Raises:
        InputError: there are none.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name the folder of a run or a sweep.")
    found = sorted(below for below in folder.iterdir() if below.is_dir() and holds_run(below))
    if not found:
        raise InputError(
            f"{folder} holds no run: name a folder that `sfedhp run`, `compare` or `sweep` has written."
        )
    return found

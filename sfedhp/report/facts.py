"""The facts of a page: runs read from their folders, grouped by setting, with means over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from sfedhp.algorithms import ALGORITHMS
from sfedhp.config import Experiment, to_dict
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.deploy.site import FILE
from sfedhp.nn.problems import CLASSIFICATION, KINDS, Metric
from sfedhp.report.charts import Curve
from sfedhp.runs.folder import holds_run, read_environment
from sfedhp.runs.provenance import METHOD, SOURCE, flat, source_name
from sfedhp.runs.record_file import Row
from sfedhp.runs.recorded import RecordedRun, read_run, run_folders

SEED: Final = "seed"
_RUN_OF_KIT: Final = "run"  # the folder in a kit with the run of its role


class Estimate(NamedTuple):
    """A mean over seeds, with the standard deviation if there are several."""

    mean: float
    deviation: float | None
    seeds: int

    def text(self, metric: Metric = CLASSIFICATION.main) -> str:
        """The mean in the metric's notation, with its deviation if there is one: `97.83 ± 0.12`."""
        spread = "" if self.deviation is None else f" ± {metric.text(self.deviation)}"
        return f"{metric.text(self.mean)}{spread}"


@dataclass(frozen=True)
class ReportedRun:
    """A run of a page."""

    record: RecordedRun
    environment: Mapping[str, Any]
    # Of the members of a deployed federation, by their names there: what they do, what the data calls them.
    states: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the run's folder, or of the kit that contains it."""
        folder = self.record.folder.absolute()
        if folder.name == _RUN_OF_KIT and (folder.parent / FILE).exists():
            folder = folder.parent
        return folder.name

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.record.config[METHOD])

    @property
    def metric(self) -> Metric:
        """The metric that PM, EM and GM are figures of: the main one of the problem."""
        return self.record.problem.main

    @property
    def with_edges(self) -> bool:
        """Whether the method has edges between clients and cloud."""
        kind = ALGORITHMS.get(self.method)
        below = self.record.config.get("algorithm.under_edges", False)
        return kind is None or kind.tiers == 3 or bool(below)

    @property
    def deployed(self) -> bool:
        """Whether it is the cloud's part of a deployed federation."""
        return (self.record.folder / "run.json").exists()

    @cached_property
    def evaluated(self) -> list[Row]:
        """The rows of the history in which models were evaluated."""
        return [row for row in self.record.history if row.get("train_loss") is not None]

    @cached_property
    def summary(self) -> Row:
        """The final metrics, with the keys of `Run.summary`."""
        return self.record.summary

    @cached_property
    def changed(self) -> dict[str, Any]:
        """The keys of the config that are not at their defaults; all keys of an own method are."""
        kind = ALGORITHMS.get(self.method)
        defaults = flat(to_dict(Experiment(algorithm=kind()) if kind else Experiment()))
        if kind is None:
            defaults = {key: value for key, value in defaults.items() if not key.startswith("algorithm.")}
        absent = object()
        return {
            key: value
            for key, value in self.record.config.items()
            if _plain(value) != _plain(defaults.get(key, absent))
        }

    def column(self, name: str) -> tuple[list[float], list[float]]:
        """The rounds in which a column of the history has a value, and the values."""
        rows = [row for row in self.record.history if isinstance(row.get(name), int | float)]
        return [row["round"] for row in rows], [row[name] for row in rows]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    name: str
    runs: Sequence[ReportedRun]

    @property
    def seeds(self) -> list[int]:
        """The seed of each run of the group."""
        return [run.record.config[SEED] for run in self.runs]

    def estimate(self, key: str) -> Estimate | None:
        """The mean of a key of the summaries; None if a run has none."""
        values = [run.summary.get(key) for run in self.runs]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return estimate(known) if len(known) == len(values) else None

    def curve(self, column: str, name: str, number: int) -> Curve | None:
        """The mean over seeds of a column, in the rounds in which all seeds have it; None if there are none.

        Args:
            column: of the history.
            name: of the curve.
            number: of its color.
        """
        each = [dict(zip(*run.column(column), strict=True)) for run in self.runs]
        rounds = sorted(set.intersection(*(set(values) for values in each)))
        if not rounds:
            return None
        points = [estimate([values[turn] for values in each]) for turn in rounds]
        spread = [point.deviation or 0.0 for point in points] if len(self.runs) > 1 else None
        return Curve(name, rounds, [point.mean for point in points], spread, number)


@dataclass(frozen=True)
class Facts:
    """All facts of a page."""

    runs: Sequence[ReportedRun]
    groups: Sequence[Group] = field(default_factory=list)

    @property
    def metric(self) -> Metric:
        """What the figures of PM, EM and GM are; runs that have another metric have none of this."""
        return self.runs[0].metric

    @property
    def kinds(self) -> list[str]:
        """The kinds of models that were evaluated, in the order of `KINDS`."""
        columns = {column for run in self.runs for row in run.evaluated for column in row}
        return [kind for kind in KINDS if self.metric.column(kind) in columns]

    @property
    def sentence(self) -> str:
        """What was run, as the first sentence of the page says it."""
        if len(self.runs) == 1:
            record = self.runs[0].record
            return record.sentence_on(source_name(record.config[SOURCE]))
        methods = list(dict.fromkeys(run.method for run in self.runs))
        sources = list(dict.fromkeys(source_name(run.record.config[SOURCE]) for run in self.runs))
        rounds = {run.record.config["rounds"] for run in self.runs}
        seeds = sorted({run.record.config[SEED] for run in self.runs})
        done = sum(run.record.finished for run in self.runs)
        settings = (
            f" of {counted(len(self.groups), 'setting')}" if 1 < len(self.groups) < len(self.runs) else ""
        )
        parts = [
            f"{counted(len(self.runs), 'run')}{settings}: {', '.join(methods)} on {', '.join(sources)}",
            _range(rounds, "round"),
            f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds",
        ]
        parts += [] if done == len(self.runs) else [f"{done} finished"]
        return f"{', '.join(parts)}."


def read_facts(folders: Iterable[Path]) -> Facts:
    """The runs in these folders: of runs, of sweeps and comparisons, or kits of clouds.

    Raises:
        InputError: one of them holds no run, or cannot be read.
    """
    found = list(dict.fromkeys(run for folder in folders for run in runs_below(folder)))
    runs = [read_run_of(folder) for folder in found]
    return Facts(runs, group(runs))


def read_run_of(folder: Path) -> ReportedRun:
    """The run in a folder.

    Raises:
        InputError: it holds no run, or cannot be read.
    """
    return ReportedRun(read_run(folder), read_environment(folder))


def runs_below(folder: Path) -> list[Path]:
    """The folders of the runs that a folder names.

    Raises:
        InputError: there are none.
    """
    if holds_run(folder):
        return [folder]
    if (folder / FILE).exists():
        if not holds_run(folder / _RUN_OF_KIT):
            raise InputError(
                f"{folder} is a kit without the records of a run: name the cloud's kit, after it was started."
            )
        return [folder / _RUN_OF_KIT]
    if holds_run(folder / "cloud" / _RUN_OF_KIT):
        return [folder / "cloud" / _RUN_OF_KIT]
    return run_folders(folder)


def group(runs: Sequence[ReportedRun]) -> list[Group]:
    """The runs by setting: those of a group differ only in their seeds."""
    found: dict[str, list[ReportedRun]] = {}
    for run in runs:
        config = {key: value for key, value in run.record.config.items() if key != SEED}
        key = json.dumps(config, sort_keys=True, default=str)
        # The same run in two folders is shown twice, not averaged.
        while any(each.record.config[SEED] == run.record.config[SEED] for each in found.get(key, ())):
            key += " again"
        found.setdefault(key, []).append(run)
    names = _names([each[0] for each in found.values()])
    return [Group(name, each) for name, each in zip(names, found.values(), strict=True)]


def varying_keys(runs: Sequence[ReportedRun]) -> list[str]:
    """The keys of the config in which runs differ, without the seed."""
    keys = dict.fromkeys(key for run in runs for key in run.record.config)
    return [
        key for key in keys if key != SEED and len({_plain(run.record.config.get(key)) for run in runs}) > 1
    ]


def estimate(values: Sequence[float]) -> Estimate:
    """The mean and the standard deviation of one value per seed."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Estimate(statistics.fmean(values), deviation, len(values))


def _names(runs: Sequence[ReportedRun]) -> list[str]:
    """A name for each setting: the method, and the keys in which runs of the same method differ."""
    varied = {
        method: [key for key in varying_keys([run for run in runs if run.method == method]) if key != METHOD]
        for method in {run.method for run in runs}
    }
    several = len(varied) > 1
    names = []
    for run in runs:
        parts = [run.method] if several or not varied[run.method] else []
        parts += [
            f"{key.rpartition('.')[2]}={_plain(run.record.config.get(key))}" for key in varied[run.method]
        ]
        names.append(", ".join(parts))
    return [
        name if names.count(name) == 1 else f"{name} ({run.name})"
        for name, run in zip(names, runs, strict=True)
    ]


def _plain(value: Any) -> str:
    """A value of a config, so that it can be compared and shown: a list and a tuple are the same."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_plain(each) for each in value)}]"
    return str(value)


def _range(values: set[int], noun: str) -> str:
    low, high = min(values), max(values)
    return counted(low, noun) if low == high else f"{low} to {high} {noun}s"

"""What to run: an experiment file's variants, its seeds, and the runs that are still missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sfedhp.config import Experiment, to_dict
from sfedhp.core.errors import InputError
from sfedhp.paper.records import Record
from sfedhp.runs.provenance import flat

_SET_LATER = ("seed", "rounds", "device")  # by a job, not by a file


@dataclass(frozen=True)
class Point:
    """One experiment of a variant, without its seed."""

    words: str  # what it sets, as the file has it
    experiment: Experiment


@dataclass(frozen=True)
class Study:
    """An experiment file with a [reproduce] table."""

    name: str
    table: str  # the table or figure of the paper it belongs to
    reading: str  # how the paper's text was understood
    paper: bool  # whether rows of the paper stand beside it
    choice_rounds: int  # of the runs that decide between the points of a variant
    variants: Mapping[str, tuple[Point, ...]]


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    study: str
    variant: str
    words: str
    experiment: Experiment  # with its seed, rounds and device

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """As its record's."""
        return (self.study, self.variant, self.words, self.experiment.seed, self.experiment.rounds)


@dataclass(frozen=True)
class Effort:
    """How much is run."""

    seeds: int = 3
    rounds: int = 0  # at most so many; 0: as the files say
    choice_rounds: int = 0  # likewise
    device: str = "auto"

    def rounds_of(self, wanted: int, most: int) -> int:
        """The rounds a file asks for, or fewer."""
        return min(wanted, most) if most else wanted


def check(studies: Iterable[Study], records: Iterable[Record]) -> None:
    """See that records were run as their experiment files are now.

    Raises:
        InputError: one was run with other settings.
    """
    named = {study.name: study for study in studies}
    for record in records:
        points = named[record.study].variants.get(record.variant)
        if points is None:
            continue
        same = [point for point in points if point.words == record.words]
        if not same:
            raise InputError(
                _outdated(record, repr(record.words), " or ".join(repr(each.words) for each in points))
            )
        before, now = flat(record.config), flat(to_dict(same[0].experiment))
        for key in before.keys() & now.keys():
            settled = key in _SET_LATER or key.startswith("engine.") or now[key] == "auto"
            if not settled and before[key] != now[key]:
                raise InputError(_outdated(record, f"{key} = {before[key]}", str(now[key])))


def _outdated(record: Record, before: str, now: str) -> str:
    return (
        f"A record of {record.variant!r} in {record.study}.jsonl was run with {before}, but the experiment "
        f"file has {now}: take such lines out to run them again, or undo the change."
    )


def trials(study: Study, effort: Effort) -> list[Job]:
    """The short runs that decide between the points of a variant."""
    rounds = effort.rounds_of(study.choice_rounds, effort.choice_rounds)
    return [
        job
        for variant, points in study.variants.items()
        if len(points) > 1
        for point in points
        for job in _jobs(study, variant, point, effort, rounds)
    ]


def finals(study: Study, effort: Effort, records: Iterable[Record]) -> list[Job]:
    """The runs whose figures are shown; of a variant with several points that of the chosen one."""
    known = list(records)
    jobs = []
    for variant, points in study.variants.items():
        chosen = choose(study, variant, points, effort, known)
        if chosen is not None:
            rounds = effort.rounds_of(chosen.experiment.rounds, effort.rounds)
            jobs += _jobs(study, variant, chosen, effort, rounds)
    return jobs


def choose(
    study: Study, variant: str, points: Sequence[Point], effort: Effort, records: Iterable[Record]
) -> Point | None:
    """The point with the best validation accuracy in the last round of the trials, mean over the seeds.

    None as long as a trial is missing.
    """
    if len(points) == 1:
        return points[0]
    rounds = effort.rounds_of(study.choice_rounds, effort.choice_rounds)
    scores = []
    for point in points:
        wanted = {job.key for job in _jobs(study, variant, point, effort, rounds)}
        found = [each for each in records if each.key in wanted]
        if len(found) < len(wanted):
            return None
        scores.append(statistics.fmean(_validation(each) for each in found))
    return points[scores.index(max(scores))]


def _validation(trial: Record) -> float:
    """Of the personalized models, or of the global one where there are none; a run that diverged has lost."""
    column = trial.curve.get("pm_validation") or trial.curve.get("gm_validation") or [None]
    return float("-inf") if trial.trouble or column[-1] is None else float(column[-1])


def _jobs(study: Study, variant: str, point: Point, effort: Effort, rounds: int) -> list[Job]:
    return [
        Job(
            study.name,
            variant,
            point.words,
            replace(point.experiment, seed=seed, rounds=rounds, device=effort.device),
        )
        for seed in range(effort.seeds)
    ]

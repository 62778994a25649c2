"""Jobs: the single runs of a study, its trials first, then the runs whose numbers are shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sfedhp.config import Experiment
from sfedhp.nn.problems import KINDS
from sfedhp.paper.records import Record
from sfedhp.paper.studies import Point, Study


@dataclass(frozen=True)
class Effort:
    """How much of the studies is run."""

    seeds: int = 0  # 0: as the files say
    rounds: int = 0  # upper limit; 0: as the files say
    choice_rounds: int = 0  # upper limit for trials; 0: as the files say
    device: str = "auto"

    def seeds_of(self, study: Study) -> range:
        """The seeds of the runs whose numbers are shown."""
        return range(self.seeds or study.seeds)

    def choice_seeds_of(self, study: Study) -> range:
        """The seeds of the trials, at most those of the runs."""
        return range(min(study.choice_seeds, len(self.seeds_of(study))))

    def limit_rounds(self, rounds: int) -> int:
        """The rounds of a run, at most `self.rounds`."""
        return min(rounds, self.rounds) if self.rounds else rounds

    def limit_choice_rounds(self, rounds: int) -> int:
        """The rounds of a trial, at most `self.choice_rounds`."""
        return min(rounds, self.choice_rounds) if self.choice_rounds else rounds


FAST = Effort(seeds=1, rounds=15, choice_rounds=3)  # minutes on a laptop, far from converged


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    study: str
    variant: str
    words: str
    experiment: Experiment  # with its seed, rounds and device

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Identifies the run; its record has the same key."""
        return (self.study, self.variant, self.words, self.experiment.seed, self.experiment.rounds)


def trials(study: Study, effort: Effort) -> list[Job]:
    """The short runs that decide between the points of a variant."""
    rounds = effort.limit_choice_rounds(study.choice_rounds)
    return [
        job
        for variant, points in study.variants.items()
        if len(points) > 1
        for point in points
        for job in _jobs(study, variant, point, effort, effort.choice_seeds_of(study), rounds)
    ]


def finals(study: Study, effort: Effort, records: Iterable[Record]) -> list[Job]:
    """The runs whose numbers are shown; of a variant with several points those of the chosen one."""
    known = list(records)
    jobs = []
    for variant, points in study.variants.items():
        chosen = choose(study, variant, points, effort, known)
        if chosen is not None:
            rounds = effort.limit_rounds(chosen.experiment.rounds)
            jobs += _jobs(study, variant, chosen, effort, effort.seeds_of(study), rounds)
    return jobs


def choose(
    study: Study, variant: str, points: Sequence[Point], effort: Effort, records: Iterable[Record]
) -> Point | None:
    """The point with the best validation accuracy in the last round of its trials, mean over seeds.

    None as long as a trial is missing.
    """
    if len(points) == 1:
        return points[0]
    rounds = effort.limit_choice_rounds(study.choice_rounds)
    records, scores = list(records), []
    for point in points:
        wanted = {
            job.key for job in _jobs(study, variant, point, effort, effort.choice_seeds_of(study), rounds)
        }
        done = [each for each in records if each.key in wanted]
        if len(done) < len(wanted):
            return None
        scores.append(statistics.fmean(_validation_accuracy(each, study.choice) for each in done))
    return points[scores.index(max(scores))]


def _validation_accuracy(trial: Record, choice: str) -> float:
    """Of the personalized models, or of the global one if there are none; −∞ for a run that diverged.

    Args:
        trial: a run.
        choice: "tiers" for the mean of all kinds of models that there are.
    """
    if choice == "tiers" and not trial.trouble:
        last = [trial.curve.get(f"{kind}_validation", [None])[-1] for kind in KINDS]
        known = [float(each) for each in last if each is not None]
        return statistics.fmean(known) if known else float("-inf")
    column = trial.curve.get("pm_validation") or trial.curve.get("gm_validation") or [None]
    return float("-inf") if trial.trouble or column[-1] is None else float(column[-1])


def _jobs(
    study: Study, variant: str, point: Point, effort: Effort, seeds: Iterable[int], rounds: int
) -> list[Job]:
    return [
        Job(
            study.name,
            variant,
            point.words,
            replace(point.experiment, seed=seed, rounds=rounds, device=effort.device),
        )
        for seed in seeds
    ]

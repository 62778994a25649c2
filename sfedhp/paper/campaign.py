"""Runs what has no record yet, stack by stack, and writes each stack's records as soon as it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sfedhp.paper import records
from sfedhp.paper.records import Record, commit_here
from sfedhp.paper.studies import Effort, Job, Study, check, finals, trials
from sfedhp.runs.environment import versions
from sfedhp.runs.loop import Progress, Stop
from sfedhp.runs.prepare import device_of
from sfedhp.runs.sweep import plan, sweep


@dataclass(frozen=True)
class Pace:
    """How far a campaign is, in rounds of single runs."""

    title: str  # what runs now
    done: int
    total: int


Watch = Callable[[Pace], None]


def missing(studies: Sequence[Study], effort: Effort, known: Sequence[Record]) -> list[Job]:
    """The runs without a record that can begin now: trials first, then the chosen."""
    done = {each.key for each in known}
    jobs = [job for study in studies for job in (*trials(study, effort), *finals(study, effort, known))]
    return [job for job in dict.fromkeys(jobs) if job.key not in done]


def outstanding(studies: Sequence[Study], effort: Effort, known: Sequence[Record]) -> int:
    """How many rounds of single runs are left, those of variants that are still to be chosen included."""
    done = {each.key for each in known}
    total = 0
    for study in studies:
        ready = finals(study, effort, known)
        total += sum(job.experiment.rounds for job in (*trials(study, effort), *ready) if job.key not in done)
        waiting = study.variants.keys() - {job.variant for job in ready}
        for variant in waiting:
            wanted = study.variants[variant][0].experiment.rounds
            total += effort.seeds * effort.rounds_of(wanted, effort.rounds)
    return total


def run(
    studies: Sequence[Study],
    effort: Effort,
    folder: Path,
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> bool:
    """Run everything that has no record yet; False where `stop` ended it before.

    A run that diverges has a record like any other: a collapse is a result.
    """
    commit, made_with = commit_here(), versions(device_of(effort.device))
    names = [study.name for study in studies]
    known = records.read(folder, names)
    check(studies, known)
    total, done = outstanding(studies, effort, known), 0
    while jobs := missing(studies, effort, known):
        for stack in plan([job.experiment for job in jobs]):
            chosen = [jobs[place] for place in stack.places]
            title = _title(chosen)

            def report(
                progress: Progress, title: str = title, before: int = done, runs: int = len(chosen)
            ) -> None:
                if watch is not None:
                    watch(Pace(title, before + runs * progress.row["round"], total))

            outcomes = sweep(
                [job.experiment for job in chosen], at_once=len(chosen), report=report, stop=stop
            )
            if stop is not None and stop():
                return False
            done += sum(job.experiment.rounds for job in chosen)
            records.append(
                folder,
                [
                    records.record(job.study, job.variant, job.words, outcome, commit, made_with)
                    for job, outcome in zip(chosen, outcomes, strict=True)
                ],
            )
        known = records.read(folder, names)
    return True


def _title(jobs: Sequence[Job]) -> str:
    names = list(dict.fromkeys(job.variant for job in jobs))
    shown = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    return f"{jobs[0].study}: {shown} ({len(jobs)} runs)"

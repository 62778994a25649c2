"""Runs the jobs of studies that have no record yet, and appends their records stack by stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sfedhp.core.files import remove_temporary_files
from sfedhp.paper.jobs import Effort, Job, finals, trials
from sfedhp.paper.newcomers import score_newcomers
from sfedhp.paper.records import Record, append_records, current_commit, make_record, read_records_of
from sfedhp.paper.studies import Study
from sfedhp.runs.environment import device_of, versions
from sfedhp.runs.loop import Progress, Stop
from sfedhp.runs.sweep import plan, sweep


@dataclass(frozen=True)
class CampaignProgress:
    """The progress of a campaign, in rounds of single runs."""

    title: str  # what runs now
    done: int
    total: int


CampaignReport = Callable[[CampaignProgress], None]


def missing_jobs(studies: Sequence[Study], effort: Effort, records: Sequence[Record]) -> list[Job]:
    """The jobs without a record that can start now: trials, and the finals of variants already chosen."""
    done = {each.key for each in records}
    jobs = [job for study in studies for job in (*trials(study, effort), *finals(study, effort, records))]
    return [job for job in dict.fromkeys(jobs) if job.key not in done]


def missing_rounds(studies: Sequence[Study], effort: Effort, records: Sequence[Record]) -> int:
    """The rounds of all runs that are left, including those of variants not chosen yet."""
    done = {each.key for each in records}
    total = 0
    for study in studies:
        ready = finals(study, effort, records)
        total += sum(job.experiment.rounds for job in (*trials(study, effort), *ready) if job.key not in done)
        for variant in study.variants.keys() - {job.variant for job in ready}:
            total += len(effort.seeds_of(study)) * effort.limit_rounds(
                study.variants[variant][0].experiment.rounds
            )
    return total


def run_studies(
    studies: Sequence[Study],
    records: str | Path,
    effort: Effort | None = None,
    *,
    report: CampaignReport | None = None,
    stop: Stop | None = None,
) -> bool:
    """Run every job of the studies that has no record yet.

    Args:
        studies: what to run.
        records: the folder of the records; one file per study.
        effort: seeds, rounds and device; by default as the files say.
        report: called after every round.
        stop: called after every round; True stops, and the stack under way leaves no record.

    Returns:
        Whether everything was run; False if `stop` ended it. A run that diverges has a record too.

    Raises:
        InputError: the records were run with other settings than the studies have.
    """
    effort = effort or Effort()
    commit, made_with = current_commit(), versions(device_of(effort.device))
    remove_temporary_files(Path(records), shared=True)
    known = read_records_of(studies, records)
    total, done = missing_rounds(studies, effort, known), 0
    while jobs := missing_jobs(studies, effort, known):
        for stack in plan([job.experiment for job in jobs]):
            together = [jobs[place] for place in stack]
            outcomes = sweep(
                [job.experiment for job in together],
                at_once=len(together),
                report=report and _round_report(report, together, done, total),
                stop=stop,
            )
            if stop is not None and stop():
                return False
            done += sum(job.experiment.rounds for job in together)
            append_records(
                records,
                [
                    make_record(
                        job.study,
                        job.variant,
                        job.words,
                        outcome,
                        newcomers=score_newcomers(outcome.run),
                        commit=commit,
                        versions=made_with,
                    )
                    for job, outcome in zip(together, outcomes, strict=True)
                ],
            )
        known = read_records_of(studies, records)
    return True


def _round_report(
    report: CampaignReport, jobs: Sequence[Job], done: int, total: int
) -> Callable[[Progress], None]:
    """Turns the progress of a stack of runs into progress of the campaign."""
    names = list(dict.fromkeys(job.variant for job in jobs))
    variants = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    title = f"{jobs[0].study}: {variants} ({len(jobs)} runs)"

    def of_round(progress: Progress) -> None:
        report(CampaignProgress(title, done + len(jobs) * progress.row["round"], total))

    return of_round

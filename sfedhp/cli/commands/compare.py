"""`sfedhp compare`: run methods on the same data and print one table."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from sfedhp.algorithms import ALGORITHMS, COMPARED
from sfedhp.algorithms.steps import caution
from sfedhp.cli.execution import DIVERGED, Ending, Interruption, execute, hints_of, how_to_resume, write_page
from sfedhp.cli.options import output_options, report_option, track_option
from sfedhp.cli.output.comparison import MethodResult, print_comparison
from sfedhp.cli.output.console import print_json, print_notes
from sfedhp.cli.output.summaries import stopped_after
from sfedhp.cli.paths import new_folder
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError, UnsuitableMethodError
from sfedhp.core.imports import is_import
from sfedhp.runs.benefit import Benefit, benefit_of
from sfedhp.runs.cautions import cautions_of
from sfedhp.runs.config_keys import check_method
from sfedhp.runs.folder import check_vacant
from sfedhp.runs.method_options import with_own_sampling
from sfedhp.runs.prepare import prepare
from sfedhp.runs.provenance import METHOD
from sfedhp.runs.recorded import read_run, run_folders
from sfedhp.runs.run import start
from sfedhp.runs.score_files import write_alone
from sfedhp.runs.settings import Settings, read_settings
from sfedhp.runs.tracking.follow import Tracking


@dataclass
class Comparison:
    """The results of the methods that ran so far."""

    folder: Path | None = None  # above the runs; made with the first run if none was given
    rows: list[MethodResult] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)  # sentences on the results
    exit_code: int = 0
    trackers: tuple[str, ...] = ()


@click.command()
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@click.option(
    "--only",
    metavar="A,B,…",
    help=f"Only these methods, of {', '.join(ALGORITHMS)}; by default {', '.join(COMPARED)}.",
)
@output_options(
    out="The folder above the runs; by default a new runs/compare-SOURCE-TIME here.",
    json="Print the final summaries as one JSON list.",
)
@report_option
@track_option
def compare(
    words: tuple[str, ...],
    only: str | None,
    out: Path | None,
    as_json: bool,
    no_report: bool,
    track: tuple[str, ...],
) -> None:
    """Run methods on the same data, one after another, and print one table.

    Two of them are baselines without a federation: `local` trains every client alone, `pooled` one model on
    all rows. The last sentences say what the other methods gain over them.

    The keys are those of `sfedhp run --help-all`. Each method uses those keys of `algorithm.KEY` that it has;
    `METHOD.KEY` (or a section [METHOD] of the file) sets a key of one method only. A method of your own is
    added with `algorithm=package.module:Class`. If a method diverges, it is marked, the others still run, and
    the exit code is 3.

    \b
    Examples:
      sfedhp compare
      sfedhp compare rounds=100 pfedme.client_proximity=15
      sfedhp compare experiment.toml --only sfedhp,pfedme --json
      sfedhp compare algorithm=my_methods:Mine --only fedavg,my_methods:Mine
    """
    settings = read_settings(words, filter(is_import, only.split(",") if only else ()))
    experiments = _experiments(settings, only)
    print_notes(_notes(settings, experiments))
    for folder in [out, *(_folder_of(out, method) for method in experiments)] if out else []:
        check_vacant(folder)
    named = experiments if only else settings.own
    comparison = _run_methods(experiments, Comparison(out, trackers=track), named)
    benefit = _benefit(comparison)
    if as_json:
        _print_json(comparison, benefit)
    else:
        print_comparison(comparison.rows)
        click.echo(f"Each method's run is in its own folder below {comparison.folder}")
    print_notes(comparison.hints)
    for sentence in benefit.sentences():
        click.echo(sentence, err=as_json)
    if comparison.folder is not None and not no_report:
        write_page(comparison.folder, as_json=as_json)
    if missing := list(experiments)[len(comparison.rows) :]:
        again = ["sfedhp", "compare", *words, "--only", ",".join(missing), "--out", str(comparison.folder)]
        click.echo(f"Not started: {', '.join(missing)}. Run them with: {shlex.join(again)}", err=True)
    raise click.exceptions.Exit(comparison.exit_code)


def _experiments(settings: Settings, only: str | None) -> dict[str, Experiment]:
    """The experiment of each method.

    Raises:
        InputError: the command line sets `algorithm`, a method is unknown, or a value cannot be used.
    """
    for entry in settings.entries:
        if entry.key == METHOD and not entry.typed and entry.value not in settings.own:
            raise InputError(
                f"{METHOD}={entry.value} has no effect here, because several methods run: choose with "
                f"--only {entry.value}."
            )
    names = (
        [check_method("--only", name.strip()) for name in only.split(",")]
        if only
        else [*COMPARED, *settings.own]
    )
    methods = list(dict.fromkeys(names))
    experiments = with_own_sampling([settings.experiment(method) for method in methods])
    return dict(zip(methods, experiments, strict=True))


def _notes(settings: Settings, experiments: Mapping[str, Experiment]) -> list[str]:
    lines = settings.ignored_keys(list(experiments))
    if settings.sets(METHOD) and settings.method not in settings.own:
        lines.append(f"{METHOD} of the file is ignored: several methods run; choose some with --only.")
    cautions = {method: caution(each.algorithm.step_rules()) for method, each in experiments.items()}
    return lines + [f"{method}: {text}" for method, text in cautions.items() if text]


def _run_methods(
    experiments: Mapping[str, Experiment], comparison: Comparison, named: Collection[str]
) -> Comparison:
    """Run one method after another, until a signal comes: also one in the last round of a method.

    Args:
        experiments: of each method.
        comparison: without results yet.
        named: the methods that the user named. Another one may be unsuitable, without an error.

    Raises:
        InputError: the first method cannot start; most likely no other can.
    """
    with Interruption() as interruption:
        for method, experiment in experiments.items():
            if interruption.signal is not None:
                comparison.exit_code = 128 + interruption.signal
                break
            try:
                ending = _run_method(method, experiment, comparison, interruption)
            except InputError as error:
                if not comparison.rows:
                    raise
                if method in named or not isinstance(error, UnsuitableMethodError):
                    comparison.exit_code = comparison.exit_code or 2
                comparison.rows.append(MethodResult(method, None, str(error)))
                continue
            comparison.rows.append(_result(method, ending))
            comparison.hints += [f"{method}: {sentence}" for sentence in hints_of(ending)]
            if ending.error:
                comparison.exit_code = DIVERGED
            if ending.signal is not None:
                click.echo(how_to_resume(ending.run), err=True)
                comparison.exit_code = 128 + ending.signal
                break
            del ending  # it holds the data of all clients, which the next method stacks again
    return comparison


def _run_method(
    method: str, experiment: Experiment, comparison: Comparison, interruption: Interruption
) -> Ending:
    prepared = prepare(experiment)
    if not comparison.rows:
        print_notes([*prepared.federation.notes, *cautions_of(prepared)])
    comparison.folder = comparison.folder or new_folder("compare", experiment.data.source)
    folder = _folder_of(comparison.folder, method)
    tracking = Tracking(comparison.trackers, [folder])
    return execute(method, partial(start, prepared, folder), interruption, tracking)


def _folder_of(folder: Path, method: str) -> Path:
    """The folder of a method's run; not every program takes the colon of a user's own in a name."""
    return folder / method.replace(":", ".")


def _result(method: str, ending: Ending) -> MethodResult:
    summary = ending.run.summary | {"trouble": ending.error}
    error, done = ending.error, stopped_after(summary)
    if done is not None:
        error = f"stopped after round {done} of {ending.run.experiment.rounds}; these numbers are not final."
    return MethodResult(method, summary, error)


def _benefit(comparison: Comparison) -> Benefit:
    """What the runs in the folder show; each client's figure alone is added to the other methods' tables."""
    folder = comparison.folder
    folders = run_folders(folder) if folder is not None and comparison.rows else []
    benefit = benefit_of([read_run(each) for each in folders])
    if alone := benefit.alone_by_client():
        for run in benefit.runs.values():
            write_alone(run.folder, alone)
    return benefit


def _print_json(comparison: Comparison, benefit: Benefit) -> None:
    summaries = [row.summary for row in comparison.rows if row.summary is not None]
    print_json(
        [
            {
                **summary,
                "stopped_after": stopped_after(summary),
                "benefit": benefit.as_dict(summary["algorithm"]),
            }
            for summary in summaries
        ]
    )
    print_notes(f"{row.method}: {row.error}" for row in comparison.rows if row.error)

"""`sfedhp sweep`: run a grid of experiments and seeds, stacked on the device."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sfedhp.algorithms.steps import caution
from sfedhp.cli.execution import DIVERGED, Interruption, write_page
from sfedhp.cli.options import output_options, report_option, track_option
from sfedhp.cli.output.console import print_json, print_notes
from sfedhp.cli.output.summaries import stopped_after
from sfedhp.cli.output.sweep import SweepRun, print_sweep
from sfedhp.cli.paths import new_folder
from sfedhp.cli.progress import round_progress
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.runs.config_keys import option_of
from sfedhp.runs.folder import check_vacant
from sfedhp.runs.grid import GridPoint, grid, own_methods
from sfedhp.runs.hints import hints
from sfedhp.runs.method_options import with_own_sampling
from sfedhp.runs.results import Outcome
from sfedhp.runs.score_files import read_scores
from sfedhp.runs.settings import Settings, read_settings
from sfedhp.runs.sweep import check_sweep, plan, rounds_done
from sfedhp.runs.sweep import sweep as run_all
from sfedhp.runs.tracking.follow import Tracking

_HINTS = 6  # that are printed
Summaries = Mapping[Path | None, Mapping[str, Any]]  # by folder


@click.command()
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=A,B,…]... [K1+K2=A,B,…]... [seeds=N]")
@click.option(
    "--at-once", type=click.IntRange(min=0), default=0, help="Runs per stack; 0: as many as fit in memory."
)
@output_options(
    out="The folder above the runs; by default a new runs/sweep-SOURCE-TIME here.",
    json="Print the final summaries as one JSON list, one entry per run.",
)
@report_option
@track_option
def sweep(
    words: tuple[str, ...],
    at_once: int,
    out: Path | None,
    as_json: bool,
    no_report: bool,
    track: tuple[str, ...],
) -> None:
    """Run a grid of experiments; those with the same shapes run together as one stack on the device.

    The keys are those of `sfedhp run --help-all`. `KEY=A,B` tries both values, and several such keys
    multiply; `K1+K2=A,B` gives both keys the same value; `seeds=N` repeats everything with seeds 0 to N −
    1. A list in brackets is one value: `clients_per_edge=[2,4],[3,3]` tries two. Every run gives the same
    numbers as alone. If a run diverges, it is marked, and the exit code is 3. Ctrl-C finishes the round and
    saves; the same command with `--out DIR` resumes and skips finished runs.

    \b
    Examples:
      sfedhp sweep algorithm.edge_rate=0.01,0.05 seeds=3
      sfedhp sweep algorithm.client_proximity+algorithm.edge_proximity=5,15,20 rounds=100
      sfedhp sweep experiment.toml algorithm=fedavg,fedprox batch_size=10,20 --json
    """
    points = grid(words)
    settings = [read_settings(point.words, own_methods(points)) for point in points]
    experiments = with_own_sampling([each.experiment() for each in settings])
    names = _folder_names(points, experiments)
    print_notes(_notes(settings, experiments))
    stacks = _check_stacks(experiments, names, at_once, out)
    out = out or new_folder("sweep", experiments[0].data.source)
    folders = [out / name for name in names]
    click.echo(_size(experiments, folders, stacks), err=True)
    with (
        Interruption() as interruption,
        round_progress("sweep") as show,
        Tracking(track, folders).follow(show) as report,
    ):
        outcomes = run_all(experiments, folders, at_once=at_once, report=report, stop=interruption.requested)
    summaries = {each.run.folder: each.run.summary | {"trouble": each.error} for each in outcomes}
    if as_json:
        print_json([each | {"stopped_after": stopped_after(each)} for each in summaries.values()])
    else:
        settings_of = [point.setting for point in points]
        print_sweep(
            [SweepRun(each, summaries.get(at)) for each, at in zip(settings_of, folders, strict=True)]
        )
        click.echo(f"Each run is in its own folder below {out}")
    print_notes(_hints(outcomes))
    if not no_report:
        write_page(out, as_json=as_json)
    if interruption.signal is not None:
        _exit_if_stopped(summaries, len(points), interruption.signal, [*words, *_options(at_once, out)])
    if any(each["trouble"] for each in summaries.values()):
        raise click.exceptions.Exit(DIVERGED)


def _hints(outcomes: Sequence[Outcome]) -> list[str]:
    """Hints on the results, with the names of the runs; at most a few."""
    lines = [
        f"{each.run.folder.name}: {sentence}"
        for each in outcomes
        if each.run.folder is not None and not each.error
        for sentence in hints(each.run.history, read_scores(each.run.folder), finished=each.run.finished)
    ]
    more = len(lines) - _HINTS
    return lines if more <= 0 else [*lines[:_HINTS], f"({more} more; `sfedhp show` prints those of a run)"]


def _folder_names(points: Sequence[GridPoint], experiments: Sequence[Experiment]) -> list[str]:
    """The names of the runs' folders.

    Raises:
        InputError: two runs are the same, or would have the same folder.
    """
    first: dict[Experiment, GridPoint] = {}
    for point, experiment in zip(points, experiments, strict=True):
        other = first.setdefault(experiment, point)
        different = [key for key, value in point.setting if value != dict(other.setting)[key]]
        # A key that the method does not have was reported as ignored; one that changes nothing is a mistake.
        if any(option_of(experiment.algorithm_name, key) for key in different):
            raise InputError(
                f"{point.name} and {other.name} are the same run: give each value once, and no key twice."
            )
    names = [_folder_name(point, each) for point, each in zip(points, experiments, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"Two of the runs would have the folder {name}: give their values other names.")
    return names


def _folder_name(point: GridPoint, experiment: Experiment) -> str:
    """The keys that vary, and the seed if it is not one of them."""
    if any(key == "seed" for key, _ in point.setting):
        return point.name
    return f"{point.name or 'run'},seed={experiment.seed}"


def _notes(settings: Sequence[Settings], experiments: Sequence[Experiment]) -> list[str]:
    ignored = {line for each in settings for line in each.ignored_keys([each.method])}
    cautions = {caution(each.algorithm.step_rules()) for each in experiments} - {""}
    return sorted(ignored | cautions)


def _check_stacks(
    experiments: Sequence[Experiment], names: Sequence[str], at_once: int, out: Path | None
) -> int:
    """The number of stacks, after a check that every run can start in its folder."""
    if out is not None:
        check_vacant(out)
    folders = None if out is None else [out / name for name in names]
    stacks = plan(experiments, at_once, folders)
    print_notes(check_sweep(experiments, stacks, folders))
    return len(stacks)


def _size(experiments: Sequence[Experiment], folders: Sequence[Path], stacks: int) -> str:
    """The number of runs and stacks as text: `4 runs in 1 stack; 2 finished before`."""
    pairs = zip(folders, experiments, strict=True)
    finished = sum(rounds_done(folder) == each.rounds for folder, each in pairs)
    before = f"; {finished} finished before" if finished else ""
    return f"{counted(len(experiments), 'run')} in {counted(stacks, 'stack')}{before}"


def _options(at_once: int, out: Path) -> list[str]:
    """The options with which the same command resumes."""
    return [*(["--at-once", str(at_once)] if at_once else []), "--out", str(out)]


def _exit_if_stopped(summaries: Summaries, runs: int, signal: int, words: Sequence[str]) -> None:
    """Say how to resume, and exit, if a run is not finished."""
    left = runs - sum(stopped_after(each) is None for each in summaries.values())
    if left:
        click.echo(
            f"Stopped, and saved; {left} of {counted(runs, 'run')} not finished. "
            f"Resume with: {shlex.join(['sfedhp', 'sweep', *words])}",
            err=True,
        )
        raise click.exceptions.Exit(128 + signal)

"""`sfedhp sweep`."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from sfedhp.algorithms.steps import caution
from sfedhp.cli.execution import DIVERGED, Interruption
from sfedhp.cli.options import full_key, is_file, option_of, read_settings
from sfedhp.cli.output.columns import counted
from sfedhp.cli.output.tables import Swept, print_json, print_sweep, stopped_after
from sfedhp.cli.paths import Target, new_folder
from sfedhp.cli.progress import rounds_shown
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.runs.prepare import with_own_draws
from sfedhp.runs.run import check_vacant
from sfedhp.runs.sweep import check, plan, rounds_done
from sfedhp.runs.sweep import sweep as run_all


class Point(NamedTuple):
    """One experiment of a grid."""

    setting: tuple[tuple[str, str], ...]  # what varies, but for the seed
    words: tuple[str, ...]  # as for `sfedhp run`

    @property
    def name(self) -> str:
        """For its folder: the last parts of the keys, and the values."""
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in self.setting]
        return ",".join(part.replace("/", "_") for part in parts)


@click.command()
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=A,B,…]... [K1+K2=A,B,…]... [seeds=N]")
@click.option("--at-once", type=click.IntRange(min=0), default=0, help="Runs in a stack; 0: as many as fit.")
@click.option(
    "--out",
    type=Target(),
    metavar="DIR",
    help="The folder above the runs; by default a new runs/sweep-SOURCE-TIME here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the final figures as one JSON list, a run each.")
def sweep(words: tuple[str, ...], at_once: int, out: Path | None, as_json: bool) -> None:
    """Run a grid of experiments, those of one shape together as one stack on the device.

    The keys are those of `sfedhp run --help`. `KEY=A,B` tries both values, and several such keys multiply;
    `K1+K2=A,B` moves keys together; `seeds=N` repeats everything with seeds 0 to N − 1. Every run gives the
    numbers it gives alone. A run that diverges is marked, and the exit code is 3. Ctrl-C finishes the round
    and saves; the same command with `--out DIR` then goes on, and repeats no run that is finished.

    \b
    Examples:
      sfedhp sweep algorithm.edge_rate=0.01,0.05 seeds=3
      sfedhp sweep algorithm.client_proximity+algorithm.edge_proximity=5,15,20 rounds=100
      sfedhp sweep experiment.toml algorithm=fedavg,fedprox batch_size=10,20 --json
    """
    points = grid(words)
    settings = [read_settings(point.words) for point in points]
    experiments = with_own_draws([each.experiment() for each in settings])
    names = _names(points, experiments)
    lines = {line for each in settings for line in each.left_out([each.method])}
    lines |= {caution(each.algorithm.step_rules()) for each in experiments} - {""}
    for line in sorted(lines):
        click.echo(line, err=True)
    if out is not None:
        check_vacant(out)
    given = None if out is None else [out / name for name in names]
    stacks = plan(experiments, at_once, given)
    check(experiments, stacks, given)
    out = out or new_folder("sweep", experiments[0].data.source)
    folders = [out / name for name in names]
    before = sum(
        rounds_done(folder) == each.rounds for folder, each in zip(folders, experiments, strict=True)
    )
    known = f"; {before} finished before" if before else ""
    click.echo(f"{counted(len(points), 'run')} in {counted(len(stacks), 'stack')}{known}", err=True)
    with Interruption() as interruption, rounds_shown("sweep") as report:
        outcomes = run_all(experiments, folders, at_once=at_once, report=report, stop=interruption.asked)
    ended = {outcome.run.folder: outcome.run.summary | {"trouble": outcome.trouble} for outcome in outcomes}
    if as_json:
        print_json([each | {"stopped_after": stopped_after(each)} for each in ended.values()])
    else:
        print_sweep(
            [Swept(point.setting, ended.get(each)) for point, each in zip(points, folders, strict=True)]
        )
        click.echo(f"Each run is in a folder of its own below {out}")
    left = len(points) - sum(stopped_after(each) is None for each in ended.values())
    if left and interruption.signal is not None:
        again = [
            "sfedhp",
            "sweep",
            *words,
            *(["--at-once", str(at_once)] if at_once else []),
            "--out",
            str(out),
        ]
        click.echo(
            f"Stopped, and saved; {left} of {counted(len(points), 'run')} not finished. "
            f"Go on with: {shlex.join(again)}",
            err=True,
        )
        raise click.exceptions.Exit(128 + interruption.signal)
    if any(each["trouble"] for each in ended.values()):
        raise click.exceptions.Exit(DIVERGED)


def _names(points: Sequence[Point], experiments: Sequence[Experiment]) -> list[str]:
    """What the runs' folders are called.

    Raises:
        InputError: two runs are the same, or would have the same folder.
    """
    seen: dict[Experiment, Point] = {}
    for point, experiment in zip(points, experiments, strict=True):
        other = seen.setdefault(experiment, point)
        apart = [key for key, value in point.setting if value != dict(other.setting)[key]]
        # Keys that the method does not have were spoken of; one that it has and changes nothing is a slip.
        if any(option_of(experiment.algorithm_name, key) for key in apart):
            raise InputError(
                f"{point.name} and {other.name} are the same run: give each value once, and no key twice."
            )
    names = [
        f"{point.name or 'run'},seed={each.seed}" for point, each in zip(points, experiments, strict=True)
    ]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"Two of the runs would have the folder {name}: give their values other names.")
    return names


def grid(words: Sequence[str]) -> list[Point]:
    """The experiments that the words of a sweep stand for, seeds innermost.

    Raises:
        InputError: a key or a value is given twice, or `seeds` is no number of repeats.
    """
    files: list[str] = []
    fixed: list[str] = []
    axes: list[list[tuple[tuple[str, str], ...]]] = []
    seeds: list[str] = []
    varied: dict[str, str] = {}  # which word varies a key
    for word in words:
        keys, _, values = word.partition("=")
        if is_file(word):
            files.append(word)
        elif keys == "seeds":
            if not values.isdecimal() or int(values) < 1:
                raise InputError(f"seeds={values} is no number of repeats: write for example seeds=3.")
            seeds = [f"seed={seed}" for seed in range(int(values))]
            _once("seed", word, varied)
        elif "," in values or "+" in keys:
            axis = [tuple((key, value) for key in keys.split("+")) for value in values.split(",")]
            if len(set(axis)) < len(axis):
                raise InputError(f"{word} has the same value twice: give each once.")
            axes.append(axis)
            for key in keys.split("+"):
                _once(full_key(key.strip()), word, varied)
        else:
            fixed.append(word)
    for word in fixed:
        _once(full_key(word.partition("=")[0].strip()), word, dict(varied))
    points = []
    for chosen in itertools.product(*axes):
        setting = tuple(pair for pairs in chosen for pair in pairs)
        own = [f"{key}={value}" for key, value in setting]
        repeats = [(*own, seed) for seed in seeds] or [tuple(own)]
        points += [Point(setting, (*files, *fixed, *repeat)) for repeat in repeats]
    return points


def _once(key: str, word: str, varied: dict[str, str]) -> None:
    if key in varied:
        raise InputError(f"{key} is given twice, in {varied[key]} and in {word}: leave one of them out.")
    varied[key] = word

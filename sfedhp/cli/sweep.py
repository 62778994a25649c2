"""`sfedhp sweep`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from sfedhp.cli.execution import DIVERGED, Interruption
from sfedhp.cli.folders import new_folder
from sfedhp.cli.options import read_settings
from sfedhp.cli.progress import rounds_shown
from sfedhp.cli.tables import print_json, print_sweep
from sfedhp.running import check_vacant
from sfedhp.sweeping import plan
from sfedhp.sweeping import sweep as run_all
from sfedhp.types import InputError


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
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder above the runs; by default a new runs/sweep-SOURCE-TIME here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the final figures as one JSON list, a run each.")
def sweep(words: tuple[str, ...], at_once: int, out: Path | None, as_json: bool) -> None:
    """Run a grid of experiments, those of one shape together as one stack on the device.

    The keys are those of `sfedhp run --help`. `KEY=A,B` tries both values, and several such keys multiply;
    `K1+K2=A,B` moves keys together; `seeds=N` repeats everything with seeds 0 to N − 1. Every run gives the
    numbers it gives alone. A run that diverges is marked, and the exit code is 3.

    \b
    Examples:
      sfedhp sweep algorithm.edge_rate=0.01,0.05 seeds=3
      sfedhp sweep algorithm.client_proximity+algorithm.edge_proximity=5,15,20 rounds=100
      sfedhp sweep experiment.toml algorithm=fedavg,fedprox batch_size=10,20 --json
    """
    points = grid(words)
    settings = [read_settings(point.words) for point in points]
    experiments = [each.experiment() for each in settings]
    lines = {line for each in settings for line in each.left_out([each.method])}
    for line in sorted(lines):
        click.echo(line, err=True)
    if out is not None:
        check_vacant(out)
    out = out or new_folder("sweep", experiments[0].data.source)
    names = [
        f"{point.name or 'run'},seed={each.seed}" for point, each in zip(points, experiments, strict=True)
    ]
    stacks = plan(experiments, at_once)
    click.echo(f"{len(experiments)} runs in {len(stacks)} stacks", err=True)
    with Interruption() as interruption, rounds_shown("sweep") as report:
        folders = [out / name for name in names]
        outcomes = run_all(experiments, folders, at_once=at_once, report=report, stop=interruption.asked)
    summaries = [outcome.run.summary | {"trouble": outcome.trouble} for outcome in outcomes]
    if as_json:
        print_json(summaries)
    else:
        print_sweep([point.setting for point in points[: len(outcomes)]], summaries)
        click.echo(f"Each run is in a folder of its own below {out}")
    if interruption.signal is not None:
        raise click.exceptions.Exit(128 + interruption.signal)
    if any(outcome.trouble for outcome in outcomes):
        raise click.exceptions.Exit(DIVERGED)


def grid(words: Sequence[str]) -> list[Point]:
    """The experiments that the words of a sweep stand for, seeds innermost.

    Raises:
        InputError: a word is not KEY=VALUE, or `seeds` is no number of repeats.
    """
    fixed: list[str] = []
    axes: list[list[tuple[tuple[str, str], ...]]] = []
    seeds: list[str] = []
    for word in words:
        keys, equals, values = word.partition("=")
        if keys == "seeds":
            if not values.isdecimal() or int(values) < 1:
                raise InputError(f"seeds={values} is no number of repeats: write for example seeds=3.")
            seeds = [f"seed={seed}" for seed in range(int(values))]
        elif equals and ("," in values or "+" in keys):
            axes.append([tuple((key, value) for key in keys.split("+")) for value in values.split(",")])
        else:
            fixed.append(word)
    points = []
    for chosen in itertools.product(*axes):
        setting = tuple(pair for pairs in chosen for pair in pairs)
        own = [f"{key}={value}" for key, value in setting]
        repeats = [(*own, seed) for seed in seeds] or [tuple(own)]
        points += [Point(setting, (*fixed, *repeat)) for repeat in repeats]
    return points

"""`sfedhp run`."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import click

from sfedhp.algorithms.steps import caution
from sfedhp.cli.execution import conclude, execute
from sfedhp.cli.help import ConfigCommand
from sfedhp.cli.options import read_settings
from sfedhp.cli.paths import Target, new_folder
from sfedhp.runs.prepare import Prepared, prepare
from sfedhp.runs.run import check_vacant, start


@click.command(cls=ConfigCommand)
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@click.option(
    "--out",
    type=Target(),
    metavar="DIR",
    help="The folder of the run; by default a new runs/METHOD-SOURCE-TIME here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the final figures as one JSON object.")
def run(words: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Run one experiment; without arguments sFedHP on the embedded images.

    The command line is stronger than the file, the file stronger than the defaults below. Ctrl-C finishes the
    round and saves; `sfedhp resume DIR` goes on. Exit codes: 0 done, 2 bad input, 3 diverged, 130 or 143
    stopped.

    \b
    Examples:
      sfedhp run
      sfedhp run algorithm=fedavg rounds=100
      sfedhp run experiment.toml algorithm.edge_rounds=5 --out results/five
      sfedhp run data.source=my.npz model.name=mlr --json
    """
    try:
        prepared = _prepared(words, out)
    except KeyboardInterrupt:
        click.echo("Stopped before the first round; nothing was saved.", err=True)
        raise click.exceptions.Exit(128 + signal.SIGINT) from None
    experiment = prepared.experiment
    folder = out or new_folder(experiment.algorithm_name, experiment.data.source)
    conclude(execute(experiment.algorithm_name, partial(start, prepared, folder)), as_json=as_json)


def _prepared(words: tuple[str, ...], out: Path | None) -> Prepared:
    """What the words ask for, ready to run, with what is to be said of it said."""
    settings = read_settings(words)
    experiment = settings.experiment()
    for line in filter(
        None, [*settings.left_out([experiment.algorithm_name]), caution(experiment.algorithm.step_rules())]
    ):
        click.echo(line, err=True)
    if out is not None:
        check_vacant(out)
    prepared = prepare(experiment)
    for line in prepared.federation.notes:
        click.echo(line, err=True)
    return prepared

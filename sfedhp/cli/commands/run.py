"""`sfedhp run`: run one experiment; without arguments the embedded default."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import click

from sfedhp.algorithms.steps import caution
from sfedhp.cli.execution import conclude, execute
from sfedhp.cli.help import ConfigCommand
from sfedhp.cli.options import output_options, report_option, rescue_option, track_option
from sfedhp.cli.output.console import print_notes
from sfedhp.cli.paths import new_folder
from sfedhp.runs.cautions import cautions_of
from sfedhp.runs.folder import check_vacant
from sfedhp.runs.prepare import Prepared, prepare
from sfedhp.runs.run import start
from sfedhp.runs.settings import read_settings
from sfedhp.runs.tracking.follow import Tracking


@click.command(cls=ConfigCommand)
@click.argument("words", nargs=-1, metavar="[CONFIG.toml] [KEY=VALUE]...")
@output_options(
    out="The folder of the run; by default a new runs/METHOD-SOURCE-TIME here.",
    json="Print the final summary as one JSON object.",
)
@rescue_option()
@report_option
@track_option
def run(
    words: tuple[str, ...],
    out: Path | None,
    rescue: Path | None,
    as_json: bool,
    no_report: bool,
    track: tuple[str, ...],
) -> None:
    """Run one experiment; without arguments sFedHP on the embedded images.

    Command-line values override the file; the file overrides the defaults below. Ctrl-C finishes the round
    and saves; `sfedhp resume DIR` continues. Exit codes: 0 done, 1 cannot write, 2 bad input, 3 diverged,
    130 or 143 stopped.

    \b
    Examples:
      sfedhp run
      sfedhp run algorithm=fedavg rounds=100
      sfedhp run experiment.toml algorithm.edge_rounds=5 --out results/five
      sfedhp run data.source=my.npz model.name=mlr --json
      sfedhp run data.source=my.csv data.target=diagnosis
    """
    try:
        prepared = _prepare(words, out)
    except KeyboardInterrupt:
        click.echo("Stopped before the first round; nothing was saved.", err=True)
        raise click.exceptions.Exit(128 + signal.SIGINT) from None
    experiment = prepared.experiment
    folder = out or new_folder(experiment.algorithm_name, experiment.data.source)
    work = partial(start, prepared, folder, rescue=rescue)
    ending = execute(experiment.algorithm_name, work, tracking=Tracking(track, [folder]))
    conclude(ending, as_json=as_json, no_report=no_report)


def _prepare(words: tuple[str, ...], out: Path | None) -> Prepared:
    """Read the words, check the folder and load the data, with notes to the user."""
    settings = read_settings(words)
    experiment = settings.experiment()
    print_notes(settings.ignored_keys([experiment.algorithm_name]))
    print_notes(filter(None, [caution(experiment.algorithm.step_rules())]))
    if out is not None:
        check_vacant(out)
    prepared = prepare(experiment)
    print_notes([*prepared.federation.notes, *cautions_of(prepared)])
    return prepared

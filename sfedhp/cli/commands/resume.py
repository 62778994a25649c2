"""`sfedhp resume`: continue a run that was stopped, with bit-identical results."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from sfedhp.cli.execution import conclude, execute
from sfedhp.cli.federation import how_to_continue, kit_of
from sfedhp.cli.options import json_option, report_option, rescue_option, track_option
from sfedhp.core.errors import InputError
from sfedhp.deploy.site import read_site
from sfedhp.runs.folder import read_config
from sfedhp.runs.provenance import METHOD, flat
from sfedhp.runs.run import restart
from sfedhp.runs.tracking.follow import Tracking


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--salvage",
    is_flag=True,
    help="If the history or ledger is damaged, continue from the newest checkpoint before the damage.",
)
@rescue_option()
@json_option("Print the final summary as one JSON object.")
@report_option
@track_option
def resume(
    folder: Path,
    salvage: bool,
    rescue: Path | None,
    as_json: bool,
    no_report: bool,
    track: tuple[str, ...],
) -> None:
    """Continue the run in DIR where it stopped or was killed.

    The result is bit-identical to that of an uninterrupted run on the same machine with the same number of
    threads. In DIR/config.toml you may raise `rounds` to run longer, and change `device`, `checkpoint.every`
    and [engine] except its precision; other settings, and the data, must not change.

    \b
    Example:
      sfedhp resume runs/sfedhp-fmnist-mini-20250101-120000
    """
    if kit := kit_of(folder):
        role = read_site(kit).role
        raise InputError(f"{folder} is of a deployed federation: {how_to_continue(kit, role)}")
    name = flat(read_config(folder)).get(METHOD, "resume")
    work = partial(restart, folder, salvage=salvage, rescue=rescue)
    ending = execute(str(name), work, tracking=Tracking(track, [folder]))
    if ending.run.finished and not ending.rounds:
        click.echo(f"The run in {folder} was already finished.", err=True)
    conclude(ending, as_json=as_json, no_report=no_report)

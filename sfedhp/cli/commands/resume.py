"""`sfedhp resume`."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.execution import conclude, execute
from sfedhp.runs import run as running
from sfedhp.runs.provenance import METHOD, flat


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print the final figures as one JSON object.")
def resume(folder: Path, as_json: bool) -> None:
    """Go on where the run in DIR stopped or was killed.

    The result has the same bits as that of an unbroken run, on the same machine with as many threads. In
    DIR/config.toml, `rounds` may be raised to go on longer, and `device`, `checkpoint.every` and [engine] may
    be changed; other settings, and the data, must be as they were.

    \b
    Example:
      sfedhp resume runs/sfedhp-fmnist-mini-20250101-120000
    """
    name = flat(running.read_config(folder)).get(METHOD, "resume")
    ending = execute(str(name), lambda report, stop: running.resume(folder, report=report, stop=stop))
    if ending.run.finished and not ending.rounds:
        click.echo(f"The run in {folder} was already finished.", err=True)
    conclude(ending, as_json=as_json)

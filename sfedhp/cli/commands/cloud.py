"""`sfedhp cloud`."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.roles import become
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.deploy.site import read_site


@click.command()
@click.argument("kit", type=click.Path(path_type=Path))
@click.option(
    "--new", is_flag=True, help="Begin a new run; the folder of the old one is kept as run-1, run-2, …"
)
def cloud(kit: Path, new: bool) -> None:
    """Be the cloud of a federation: wait for the members, run the rounds, end.

    The records are in KIT/run, as those of `sfedhp run`; started again, it goes on from its last round.

    \b
    Examples:
      sfedhp cloud kits/cloud
      sfedhp cloud kits/cloud --new
    """
    read_site(kit, "cloud")
    if new and (kit / "run").exists():
        with locked(kit):
            _put_away(kit)
    become("cloud", kit, kit)


def _put_away(kit: Path) -> None:
    number = 1
    while (kit / f"run-{number}").exists():
        number += 1
    try:
        (kit / "run").rename(kit / f"run-{number}")
    except OSError as error:
        raise InputError(f"{kit / 'run'} cannot be renamed: {error.strerror}.") from None

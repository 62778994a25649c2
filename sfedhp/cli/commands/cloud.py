"""`sfedhp cloud`: run the cloud of a federation."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.options import track_option
from sfedhp.cli.roles import exec_role
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.deploy.site import PRIVACY_FILE, read_site


@click.command()
@click.argument("kit", type=click.Path(path_type=Path))
@click.option(
    "--new", is_flag=True, help="Start a new run; the folder of the old one is kept as run-1, run-2, …"
)
@track_option
def cloud(kit: Path, new: bool, track: tuple[str, ...]) -> None:
    """Run the cloud of a federation: wait for the members, run the rounds, exit.

    KIT/run has the same files as a folder of `sfedhp run`. A restarted cloud continues from its last round.

    \b
    Examples:
      sfedhp cloud kits/cloud
      sfedhp cloud kits/cloud --new
    """
    read_site(kit, "cloud")
    if new and (kit / "run").exists():
        with locked(kit):
            _rename_run(kit)
    exec_role("cloud", kit, kit, track=track)


def _rename_run(kit: Path) -> None:
    """Rename the folder of the old run to the first free run-N. What it spent of its privacy still counts."""
    number = 1
    while (kit / f"run-{number}").exists():
        number += 1
    try:
        (kit / "run").rename(kit / f"run-{number}")
        spent = kit / f"run-{number}" / PRIVACY_FILE
        if spent.exists():
            (kit / "run").mkdir()
            spent.rename(kit / "run" / PRIVACY_FILE)
    except OSError as error:
        raise InputError(f"{kit / 'run'} cannot be renamed: {error.strerror}.") from None

"""`sfedhp status`."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.output.federation import standing
from sfedhp.cli.output.tables import print_json, results
from sfedhp.core.errors import InputError
from sfedhp.deploy.event_log import STATUS, read_status
from sfedhp.deploy.site import read_site


@click.command()
@click.argument("kit", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def status(kit: Path, as_json: bool) -> None:
    """How the site of a kit stands: for the cloud who is up, the round, accuracies and bytes.

    It reads what the role on this machine wrote down, and asks nobody.

    \b
    Examples:
      sfedhp status kits/cloud
      sfedhp status kits/edge-0 --json
    """
    site = read_site(kit)
    found = read_status(kit / "run")
    if found is None and (kit / "run" / STATUS).exists():
        raise InputError(
            f"{kit / 'run' / STATUS} cannot be read: a role writes it anew while it runs, so look again, or "
            f"start it with `sfedhp {site.role} {kit}`."
        )
    if found is None:
        raise InputError(f"{site.name} has not been started yet: start it with `sfedhp {site.role} {kit}`.")
    if as_json:
        print_json(found)
        return
    results().print(standing(found))

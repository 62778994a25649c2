"""`sfedhp edge`: run an edge of a federation."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.roles import exec_role
from sfedhp.deploy.site import SERVER


@click.command()
@click.argument("kit", type=click.Path(path_type=Path))
def edge(kit: Path) -> None:
    """Run an edge: the server of its clients, and a member of the cloud.

    A restarted edge continues from its last edge round. Its model and its log are in KIT/run.

    \b
    Example:
      sfedhp edge kits/edge-0
    """
    exec_role("edge", kit, kit / SERVER)

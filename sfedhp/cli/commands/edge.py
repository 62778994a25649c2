"""`sfedhp edge`."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.roles import become
from sfedhp.deploy.site import SERVER


@click.command()
@click.argument("kit", type=click.Path(path_type=Path))
def edge(kit: Path) -> None:
    """Be an edge: serve the clients below, answer the cloud above.

    Started again, it goes on from its last edge round. Its model and its log are in KIT/run.

    \b
    Example:
      sfedhp edge kits/edge-0
    """
    become("edge", kit, kit / SERVER)

"""`sfedhp provision`: make the start-up kits of a federation on several machines."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.federation import read_deployment
from sfedhp.cli.options import output_options
from sfedhp.cli.output.console import print_json, print_notes
from sfedhp.cli.roles import require_flare


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="FEDERATION.toml [KEY=VALUE]...")
@output_options(
    out="The folder of the kits.", json="Print the folders of the kits as JSON.", default=Path("kits")
)
def provision(arguments: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Make the start-up kits of a federation: certificates and settings for the cloud, edges and clients.

    Copy each kit to its machine over a secure channel: it contains a private key. The folder `authorities`
    can sign further certificates: keep it private. The keys are those of `sfedhp run --help-all`.

    \b
    Examples:
      sfedhp provision federation.toml
      sfedhp provision federation.toml rounds=100 algorithm.edge_rounds=5 --out kits
    """
    require_flare()
    from sfedhp.deploy.provisioning import make_kits
    from sfedhp.deploy.topology import lay_out

    file, experiment = read_deployment(arguments)
    layout = lay_out(file, experiment)
    kits = make_kits(layout, out)
    print_notes(layout.notes)
    if as_json:
        print_json({kit.name: str(kit) for kit in kits})
        return
    for kit in kits:
        click.echo(str(kit))

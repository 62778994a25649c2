"""`sfedhp provision`."""

from __future__ import annotations

from pathlib import Path

import click

from sfedhp.cli.output.tables import print_json
from sfedhp.cli.paths import Target
from sfedhp.cli.roles import needs_flare, read_plan


@click.command()
@click.argument("plan", nargs=-1, required=True, metavar="FEDERATION.toml [KEY=VALUE]...")
@click.option("--out", type=Target(), default=Path("kits"), show_default=True, help="The folder of the kits.")
@click.option("--json", "as_json", is_flag=True, help="Print the folders of the kits as JSON.")
def provision(plan: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Make the start-up kits of a federation: certificates and settings for the cloud, edges and clients.

    A kit is a folder to copy to its machine; it holds a private key. The folder `authorities` signs further
    certificates: keep it where nobody else reads it. The keys are those of `sfedhp run --help`.

    \b
    Examples:
      sfedhp provision federation.toml
      sfedhp provision federation.toml rounds=100 algorithm.edge_rounds=5 --out kits
    """
    needs_flare()
    from sfedhp.deploy.provisioning import make_kits
    from sfedhp.deploy.topology import lay_out

    file, experiment = read_plan(plan)
    kits = make_kits(lay_out(file, experiment), out)
    if as_json:
        print_json({kit.name: str(kit) for kit in kits})
        return
    for kit in kits:
        click.echo(str(kit))

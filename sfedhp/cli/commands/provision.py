"""`sfedhp provision`: make and change the start-up kits of a federation on several machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from sfedhp.cli.federation import read_deployment
from sfedhp.cli.options import output_options
from sfedhp.cli.output.console import print_json, print_notes
from sfedhp.cli.roles import require_flare
from sfedhp.core.errors import InputError

_LONGEST = 3650  # days


@click.command()
@click.argument("arguments", nargs=-1, metavar="[FEDERATION.toml] [KEY=VALUE]...")
@click.option(
    "--add", metavar="SERVER", help="Make the kit of one more client of this edge, or of the cloud."
)
@click.option("--renew", metavar="SITE", help="Give the kit of a site new keys and certificates.")
@click.option("--revoke", metavar="SITE", help="Make every server reject the certificates of a member.")
@click.option(
    "--approve",
    metavar="FILE.csr",
    type=click.Path(path_type=Path),
    help="Issue a certificate for a key that a member made with `sfedhp request`.",
)
@click.option("--systemd", is_flag=True, help="Write a systemd unit for each kit in the folder.")
@click.option("--compose", is_flag=True, help="Write a compose file for the kits in the folder.")
@click.option("--helm", is_flag=True, help="Write a Helm chart for the kits in the folder.")
@click.option(
    "--only", metavar="SITE", multiple=True, help="With --systemd, --compose or --helm: for this kit alone."
)
@click.option(
    "--days",
    type=click.IntRange(1, _LONGEST),
    show_default=str(_LONGEST),
    help="How long new certificates are valid: of new kits, --add, --renew and --approve.",
)
@output_options(
    out="The folder of the kits.", json="Print the folders of the kits as JSON.", default=Path("kits")
)
def provision(
    arguments: tuple[str, ...],
    add: str | None,
    renew: str | None,
    revoke: str | None,
    approve: Path | None,
    systemd: bool,
    compose: bool,
    helm: bool,
    only: tuple[str, ...],
    days: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Create the start-up kits of a federation: certificates and settings for the cloud, edges and clients.

    Copy each kit to its machine over a secure channel: it contains a private key. The folder `authorities`
    can sign further certificates: keep it private. The keys are those of `sfedhp run --help-all`.

    --add, --renew, --revoke and --approve change existing kits, and print the files to copy to machines. The
    other sites keep their kits.

    --systemd, --compose and --helm write files that run the roles as services into the folder of the kits;
    with a federation file, they create the kits first.

    \b
    Examples:
      sfedhp provision federation.toml
      sfedhp provision federation.toml rounds=100 algorithm.edge_rounds=5 --out kits
      sfedhp provision --revoke client-0-1
      sfedhp provision --renew edge-0 --days 365
      sfedhp provision federation.toml --add edge-1
      sfedhp provision --systemd --only client-0-1
    """
    require_flare()
    changes = [change for change in (add, renew, revoke, approve) if change is not None]
    if len(changes) > 1:
        raise InputError("Give one of --add, --renew, --revoke and --approve at a time.")
    services = systemd or compose or helm
    if only and not services:
        raise InputError("--only goes with --systemd, --compose or --helm.")
    if changes and services:
        raise InputError(
            "--systemd, --compose and --helm do not go with --add, --renew, --revoke, --approve: change the "
            "kits first, then write those files with a second command."
        )
    if not arguments and (add is not None or not (changes or services)):
        raise InputError("Give the federation file: `sfedhp provision federation.toml`.")
    if arguments and changes and add is None:
        raise InputError(
            f"--renew, --revoke and --approve take no federation file and no settings: remove {arguments[0]}."
        )
    if days is not None and (revoke is not None or not (arguments or changes)):
        raise InputError(
            "--days is for new certificates, and this command makes none: remove it, or use --renew."
        )
    days = days or _LONGEST
    if services and not changes:
        if arguments:
            _made(arguments, out, days)
        _print(_services(systemd, compose, helm, only, out), as_json)
        return
    if not changes:
        kits = _made(arguments, out, days)
        if as_json:
            print_json({kit.name: str(kit) for kit in kits})
            return
        for kit in kits:
            click.echo(str(kit))
        return
    files = (
        _added(arguments, add, out, days) if add is not None else _changed(renew, revoke, approve, days, out)
    )
    _print(files, as_json)


def _print(files: Sequence[Path], as_json: bool) -> None:
    if as_json:
        print_json([str(file) for file in files])
        return
    for file in files:
        click.echo(str(file))


def _services(systemd: bool, compose: bool, helm: bool, only: Sequence[str], out: Path) -> list[Path]:
    from sfedhp.deploy import services

    found = services.services_of(out, only)
    written = services.write_systemd(found, out / "systemd") if systemd else []
    written += services.write_compose(found, out) if compose else []
    return written + (services.write_helm(found, out) if helm else [])


def _made(arguments: Sequence[str], out: Path, days: int) -> list[Path]:
    from sfedhp.deploy.provisioning import make_kits
    from sfedhp.deploy.topology import lay_out

    file, experiment = read_deployment(arguments)
    layout = lay_out(file, experiment)
    kits = make_kits(layout, out, days)
    print_notes(layout.notes)
    return kits


def _added(arguments: Sequence[str], server: str, out: Path, days: int) -> list[Path]:
    from sfedhp.deploy.added_seat import add_seat

    return add_seat(read_deployment(arguments)[0], out, server, days)


def _changed(renew: str | None, revoke: str | None, approve: Path | None, days: int, out: Path) -> list[Path]:
    """The files that changed, which have to be copied to machines."""
    from sfedhp.deploy import renewal

    if renew is not None:
        return renewal.renew(out, renew, days)
    if revoke is not None:
        return renewal.revoke(out, revoke)
    assert approve is not None
    return [renewal.approve(out, approve, days)]

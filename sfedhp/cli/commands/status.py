"""`sfedhp status`: show the status of a site of a federation."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from sfedhp.cli.options import json_option
from sfedhp.cli.output.console import print_json, print_notes, results
from sfedhp.cli.output.federation import status_table
from sfedhp.core.errors import InputError
from sfedhp.deploy.event_log import STATUS, read_status
from sfedhp.deploy.monitor import STALE, is_stale
from sfedhp.deploy.site import read_site


@click.command()
@click.argument("kit", type=click.Path(path_type=Path))
@json_option("Print the status as one JSON object.")
def status(kit: Path, as_json: bool) -> None:
    """Show the status of a site: for the cloud which members are up, the round, accuracies and bytes.

    Reads the file that the role on this machine writes; sends no request.

    \b
    Examples:
      sfedhp status kits/cloud
      sfedhp status kits/edge-0 --json
    """
    site = read_site(kit)
    current = read_status(kit / "run")
    if current is None and (kit / "run" / STATUS).exists():
        raise InputError(
            f"{kit / 'run' / STATUS} cannot be read: a running role rewrites it, so try again, or start "
            f"the role with `sfedhp {site.role} {kit}`."
        )
    if current is None:
        raise InputError(f"{site.name} has not been started yet: start it with `sfedhp {site.role} {kit}`.")
    expires, warning = _expiry(kit)
    if as_json:
        print_json(current | ({"expires": expires} if expires else {}))
        return
    results().print(status_table(current))
    if expires:
        results().print(f"certificate valid until {expires}")
    if current.get("members") and is_stale(current):  # a client without a request writes nothing
        print_notes(
            [
                f"{site.name} has not written its status for {STALE:.0f} s or more, so it is probably not "
                f"running: start it with `sfedhp {site.role} {kit}`."
            ]
        )
    if warning:
        print_notes([f"warning: {warning}"])


def _expiry(kit: Path) -> tuple[str | None, str | None]:
    """The day on which the first certificate of a kit expires, and a warning if that is soon."""
    if find_spec("cryptography") is None:  # it comes with FLARE
        return None, None
    from sfedhp.deploy.certificates import expiry, expiry_warning

    until = expiry(kit)
    return (None if until is None else f"{until:%Y-%m-%d}"), expiry_warning(kit)

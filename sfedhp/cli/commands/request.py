"""`sfedhp request`: make a member's private key on its own machine."""

from __future__ import annotations

import re
from pathlib import Path

import click

from sfedhp.cli.roles import require_flare
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text, writing

_NAME = re.compile(r"client-\d+-\d+|edge-\d+")


@click.command()
@click.argument("name", metavar="SEAT")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default="here",
    help="The folder for the key and the request.",
)
def request(name: str, out: Path) -> None:
    """Create a private key on this machine, and a request for its certificate.

    Send SEAT.csr to the person who has the folder `authorities`, and keep client.key. They run `sfedhp
    provision --approve SEAT.csr` and give you a kit without a key: put client.key into its folder `startup`
    (for an edge, `member/startup`). The key never leaves this machine.

    \b
    Example:
      sfedhp request client-0-1 --out site
    """
    require_flare()
    from sfedhp.deploy.certificates import new_key, signing_request, write_key

    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} is not a seat: name it as its kit, client-0-1 or edge-0.")
    key_path, csr_path = out / "client.key", out / f"{name}.csr"
    for path in (key_path, csr_path):
        if path.exists():
            raise InputError(f"{path} exists already: choose another folder with --out.")
    with writing(out, "another with --out"):
        out.mkdir(parents=True, exist_ok=True)
        key = new_key()
        write_key(key_path, key)
        write_text(csr_path, signing_request(name, key).decode("ascii"))
    click.echo(str(key_path))
    click.echo(str(csr_path))

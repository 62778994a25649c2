"""The readme of a kit: what it is for, how its role is started, and whom to ask."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sfedhp._version import __version__
from sfedhp.core.files import write_text
from sfedhp.core.formats import counted
from sfedhp.core.text import printable
from sfedhp.deploy.federation_file import Address
from sfedhp.deploy.site import Site

NAME: Final = "readme.txt"
_LONGEST: Final = 200  # characters of a name or a contact
_NOBODY: Final = "the person who sent you this kit"
_TEXT: Final = """\
{called}, {what} in the federation {federation}
{line}

This folder is secret: it holds the private key of {name}. Keep it on the machine that runs {name}, where
only its user can read it, and do not pass it on.

Start

    Install sfedhp {version} with its extra "deploy", and then, in this folder:

        {command}

    {more}
    It can be stopped and started again at any time: it continues where it was. Do not use the scripts in
    startup/: they belong to NVIDIA FLARE, which carries the messages and which `sfedhp` starts itself.

Network

    {network}

Status

        sfedhp status .

    run/log.jsonl has what happened, a line for each event. NVIDIA FLARE's own log is in {log}.

Questions

    Ask {contact}.
"""


def write_readme(site: Site, kit: Path, cloud: Address, own: Address | None, contact: str) -> None:
    """Write the readme of a kit.

    Args:
        site: of the kit.
        kit: its folder.
        cloud: where the cloud listens.
        own: where this server listens, or the edge of this client; None: this site is below the cloud.
        contact: whom to ask, as the federation file says; empty: the person who sent the kit.
    """
    name = printable(site.names.get(site.name, ""), _LONGEST)
    called = f"{name} [{site.name}]" if name else site.name
    what = {"cloud": "the cloud", "edge": "an edge server", "client": "a client"}[site.role]
    head = f"{called}, {what} in the federation {site.federation}"
    server = own or cloud
    text = _TEXT.format(
        called=called,
        what=what,
        federation=site.federation,
        line="=" * len(head),
        name=site.name,
        version=__version__,
        command=f"sfedhp {site.role} ." + (" data.source=FILE" if site.role == "client" else ""),
        more=_MORE[site.role],
        network=_network(site, cloud, server),
        log="server/log.txt and member/log.txt" if site.role == "edge" else "log.txt",
        contact=printable(contact, _LONGEST) or _NOBODY,
    )
    write_text(kit / NAME, text)


_MORE: Final = {
    "cloud": "It waits for its members, runs the rounds and ends. Results and models are then in run/.",
    "edge": "It waits for its clients and the cloud, and ends with the run.",
    "client": "FILE is your own data: an .npz with `inputs` and `labels`, or a table with the columns of\n"
    "    the federation's. It never leaves this machine. Without data.source the client takes its share of\n"
    "    the experiment's data. It ends with the run; its model is then in run/models/.",
}


def _network(site: Site, cloud: Address, server: Address) -> str:
    """Sentences on the connections of a site, in and out."""
    if site.role == "client":
        return f"It connects to {server.host}, port {server.port}. Nothing connects to it."
    members = counted(len(site.below), "member")
    port = server.listen_port or server.port
    listens = f"Its {members} connect{'s' if len(site.below) == 1 else ''} to port {port} of this machine"
    if site.role == "cloud":
        return f"{listens}."
    return f"{listens}, and it connects to {cloud.host}, port {cloud.port}."

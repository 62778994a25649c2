"""Makes the kit of a client that joins an existing federation."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from sfedhp.core.errors import InputError
from sfedhp.core.files import temporary_folder
from sfedhp.deploy.certificates import Authority
from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.kit_changes import changing
from sfedhp.deploy.provisioning import LONGEST_DAYS, flare_kits, make_private, place_kit
from sfedhp.deploy.readme import write_readme
from sfedhp.deploy.site import AUTHORITIES, FILE, INITIAL, Site, client_name, read_site, write_site


def add_seat(file: FederationFile, folder: Path, server: str, days: int = LONGEST_DAYS) -> list[Path]:
    """Make the kit of one more client of a server, with the existing authority.

    A command that was killed can be repeated: it makes the same kit, or continues with the one it made.

    Args:
        file: the federation's, for the address of the server.
        folder: the kits, with their authorities.
        server: the edge, or the cloud of a two-tier method.
        days: how long the certificate is valid.

    Returns:
        The new kit, and the descriptions that servers need: `sfedhp.json` of the cloud and of the edge.

    Raises:
        InputError: there is no such server, it has no clients, its authority is missing, or a folder of the
            kit's name is there.
    """
    read_site(folder / server)
    with changing(folder):
        return _add_seat(file, folder, server, days)


def _add_seat(file: FederationFile, folder: Path, server: str, days: int) -> list[Path]:
    site, cloud = read_site(folder / server), read_site(folder / "cloud")
    experiment, tiers = site.experiment, site.experiment.algorithm.tiers
    if site.role == "client" or (site.role == "cloud") != (tiers == 2):
        kind = "an edge, as edge-0" if tiers == 3 else "cloud"
        raise InputError(f"{server} cannot get a client with {experiment.algorithm_name}: name {kind}.")
    edge = site.edge if tiers == 3 else experiment.edges - 1
    name, number = client_name(edge, len(cloud.clients_of(edge))), experiment.clients + len(cloud.added)
    address = file.addresses(experiment.edges)[edge] if tiers == 3 else file.cloud
    # The cloud's description is written last: what it does not name, a killed command may have begun.
    site = replace(site, added=tuple(each for each in site.added if each != name))
    # Neither the names of others' data nor the server's port: a kit describes its own site.
    client = replace(
        site,
        role="client",
        name=name,
        edge=edge,
        seat=len(site.below),
        client=number,
        clients=(),
        names={},
        monitor=0,
        added=(),
    )
    kit = folder / name
    if not kit.exists():
        _make_kit(client, kit, f"{site.federation}-{server}", address, file, days)
    elif not _is_kit_of(client, kit):
        raise InputError(
            f"{kit} is already there, and is not the kit of this client: remove it and repeat this command."
        )
    ids = (*cloud.clients, number) if tiers == 2 else ()
    servers = {server: replace(site, added=(*site.added, name))} if tiers == 3 else {}
    servers["cloud"] = replace(cloud, clients=ids, added=(*cloud.added, name))
    for each, described in servers.items():
        write_site(described, folder / each)
    return [kit, *(folder / each / FILE for each in sorted(servers))]


def _make_kit(
    client: Site, kit: Path, authority: str, address: Address, file: FederationFile, days: int
) -> None:
    """Make a kit whole or not at all, and only then record its certificate."""
    authorities = kit.parent / AUTHORITIES
    known = Authority.read(authorities / authority)
    with temporary_folder(kit) as work:
        # FLARE writes an authority's keys in place, where a full disk would destroy them: it gets a copy.
        copy = work / AUTHORITIES / authority
        known.write(copy)
        made = flare_kits(authority, address, [client.name], copy.parent, days)
        beside = work / kit.name
        place_kit(made[client.name], beside, "client", ".")
        write_site(client, beside)
        write_readme(client, beside, file.cloud, address, file.contact)
        shutil.copy(kit.parent / "cloud" / INITIAL, beside / INITIAL)
        make_private(beside)
        Authority.read(copy).write(authorities / authority)
        beside.rename(kit)


def _is_kit_of(client: Site, kit: Path) -> bool:
    try:
        return read_site(kit) == client
    except InputError:
        return False

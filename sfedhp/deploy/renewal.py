"""Changes a federation with existing kits: new certificates, revocations, and keys made by members."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.core.text import printable
from sfedhp.deploy.certificates import (
    Authority,
    RevocationList,
    expected_certificates,
    new_key,
    read_certificate,
    read_request,
    serial,
    write_certificate,
    write_key,
)
from sfedhp.deploy.kit_changes import changing
from sfedhp.deploy.site import AUTHORITIES, REVOKED, Site, read_site


def renew(kits: Path, name: str, days: int) -> list[Path]:
    """Give a kit new keys and certificates. Other kits do not change, and the old certificates stay valid.

    Args:
        kits: the folder with all kits and the authorities.
        name: of the site: cloud, edge-0, client-0-1.
        days: how long they are valid.

    Returns:
        The files to copy to the site, keys and certificates.

    Raises:
        InputError: there is no such kit, it lacks a certificate, or there is no authority.
    """
    with _changing(kits, name) as site:
        issued = []
        for path in expected_certificates(kits / name, site.role):
            old, key, authority = read_certificate(path), new_key(), _authority(kits, site, path)
            issued.append((path, key, authority, authority.issue(old, key.public_key(), days)))
        for _, key, authority, new in issued:
            authority.record(new, key)
        for path, key, _, new in issued:
            write_key(path.with_suffix(".key"), key)
            write_certificate(path, new)
    return [each for path, *_ in issued for each in (path.with_suffix(".key"), path)]


def approve(kits: Path, request: Path, days: int) -> Path:
    """Issue a certificate for a key that a member made itself; the kit's own key is removed.

    Args:
        kits: the folder with all kits and the authorities.
        request: the file that `sfedhp request` made on the member's machine.
        days: how long the certificate is valid.

    Returns:
        The certificate in the kit, which then lacks only the member's key.

    Raises:
        InputError: the request cannot be read, is for another seat than its file is named for, or there is no
            such seat.
    """
    name, public_key = read_request(request)
    if name != request.stem:  # the administrator sees only the name of the file
        raise InputError(
            f"{request} is a request for {printable(name, 64)}: if its sender may have that seat, name the "
            f"file {printable(name, 64)}.csr."
        )
    with _changing(kits, name) as site:
        if site.role == "cloud":
            raise InputError(f"{name} is a member of no server: a key of its own is for edges and clients.")
        path = _as_member(kits, name, site)
        authority = _authority(kits, site, path)
        new = authority.issue(read_certificate(path), public_key, days)
        authority.record(new, None)
        path.with_suffix(".key").unlink(missing_ok=True)
        write_certificate(path, new)
    return path


def revoke(kits: Path, name: str) -> list[Path]:
    """Revoke every certificate that a member ever got, and write the list into every server's kit here.

    Args:
        kits: the folder with all kits and the authorities.
        name: of the member: edge-0, client-0-1.

    Returns:
        The lists. A copy in the cloud's kit is enough: the cloud sends it to the edges with its next request.

    Raises:
        InputError: there is no such kit, or no authority, or none knows the member, or the site is the cloud.
    """
    with _changing(kits, name) as site:
        if site.role == "cloud":
            raise InputError(
                "The cloud has no server that could reject it: make new kits for a new federation."
            )
        serials = _serials(kits, name, site)
        cloud = Authority.read(kits / AUTHORITIES / f"{site.federation}-cloud")
        servers = [kit for kit in (kits / "cloud", *sorted(kits.glob("edge-*"))) if kit.is_dir()]
        lists = [kits / REVOKED, *(kit / REVOKED for kit in servers)]
        found = [RevocationList.parse(_json(path), cloud.root) for path in lists if path.exists()]
        known = max(found, key=lambda each: each.version, default=RevocationList())
        new = known.with_serials(dict.fromkeys(sorted(serials), site.name), cloud.key)
        for path in lists:
            write_text(path, json.dumps(new.to_dict(), indent=2) + "\n")
    return lists


@contextmanager
def _changing(kits: Path, name: str) -> Iterator[Site]:
    """Change the kits in a folder, one of which has this name; its description.

    Raises:
        InputError: there is no such kit.
    """
    read_site(kits / name)
    with changing(kits):
        yield read_site(kits / name)


def _serials(kits: Path, name: str, site: Site) -> set[str]:
    """The serial numbers of all certificates of a member, as every authority recorded them.

    Raises:
        InputError: there are none, or an authority is missing or damaged.
    """
    path = _as_member(kits, name, site)
    issuer = _authority(kits, site, path)  # without it, those that were renewed would stay valid
    others = sorted(state.parent.parent for state in (kits / AUTHORITIES).glob("*/state/cert.json"))
    authorities = [issuer, *(Authority.read(folder) for folder in others if folder != issuer.folder)]
    serials = {number for authority in authorities for number in authority.serials(site.name)}
    with contextlib.suppress(InputError):  # the kit's own file may be lost or damaged
        serials.add(serial(read_certificate(path)))
    if not serials:
        raise InputError(
            f"{kits / AUTHORITIES} has no certificate of {site.name} that could be revoked: restore that "
            f"folder from a copy, or put the member's certificate at {path}."
        )
    return serials


def _as_member(kits: Path, name: str, site: Site) -> Path:
    """The certificate with which an edge or a client connects to its server."""
    return next(path for path in expected_certificates(kits / name, site.role) if path.name == "client.crt")


def _authority(kits: Path, site: Site, certificate: Path) -> Authority:
    """The authority that issued a certificate of a kit: its own for a server, else that of its server."""
    server = site.name if certificate.name == "server.crt" else "cloud"
    if site.role == "client" and site.experiment.algorithm.tiers == 3:
        server = f"edge-{site.edge}"
    return Authority.read(kits / AUTHORITIES / f"{site.federation}-{server}")


def _json(path: Path) -> object:
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it from a copy.") from None

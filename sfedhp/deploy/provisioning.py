"""Makes kits: certificates and settings for every site, by NVIDIA FLARE's provisioning.

The cloud and every edge is a separate FLARE federation with its own certificate authority, so a certificate
of one is not valid at another. There is no administrator, so no jobs (code) can be sent to a site.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner

from sfedhp.core.errors import InputError
from sfedhp.deploy.federation_file import Address
from sfedhp.deploy.kit_changes import all_or_nothing
from sfedhp.deploy.readme import NAME as README
from sfedhp.deploy.readme import write_readme
from sfedhp.deploy.site import (
    AUTHORITIES,
    MEMBER,
    SERVER,
)
from sfedhp.deploy.topology import Layout

_ORGANIZATION: Final = "sfedhp"
LONGEST_DAYS: Final = 3650
_DAYS: Final = LONGEST_DAYS  # that an authority's own certificate is valid
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")  # IPv4 addresses too; FLARE accepts no others
_LONGEST_HOST: Final = 253  # characters
_LONGEST_NAME: Final = 64  # characters of a name in a certificate
_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "::1")
_LAST_PORT: Final = 65535


class _LastingCertificates(CertBuilder):  # type: ignore[misc]
    """Makes sites' certificates valid as long as they should be; FLARE's own expire within a year."""

    def __init__(self, days: int):
        super().__init__(root_valid_days=_DAYS)
        self._days = days

    def _generate_cert(self, *args: Any, **kwargs: Any) -> Any:
        if self.root_cert is not None:
            until = datetime.now(UTC) + timedelta(days=self._days)
            kwargs["not_valid_after"] = min(until, self.root_cert.not_valid_after_utc)
        return super()._generate_cert(*args, **kwargs)


def make_kits(layout: Layout, folder: Path, days: int = LONGEST_DAYS) -> list[Path]:
    """Make a kit for every site, and return their folders. If it fails, nothing is left of them.

    Args:
        layout: of the federation.
        folder: for the kits.
        days: how long their certificates are valid, at most as long as those of their authorities.

    Raises:
        InputError: the folder already holds something, a host or name cannot be used, or FLARE fails.
    """
    _check(layout)
    names = [AUTHORITIES, *(site.name for site in layout.sites)]
    with all_or_nothing(folder, names):
        os.chmod(folder, 0o700)  # private keys are in it
        _make(layout, folder, days)
        for site in layout.sites:
            own = layout.addresses[site.edge] if layout.addresses and site.role != "cloud" else None
            write_readme(site, folder / site.name, layout.file.cloud, own, layout.file.contact)
        for name in names:
            make_private(folder / name)
    return [folder / site.name for site in layout.sites]


def make_private(folder: Path) -> None:
    """Remove other users' permissions on a folder and its content: a copy keeps the permissions of files."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)


def _check(layout: Layout) -> None:
    """Check hosts, ports and names before anything is made: FLARE and certificates have limits."""
    servers = {"cloud": layout.file.cloud}
    servers |= {site.name: address for site, address in zip(layout.edges, layout.addresses, strict=True)}
    for name, address in servers.items():
        fits = _HOST.fullmatch(address.host) and len(address.host) <= _LONGEST_HOST
        if not fits and address.host not in _LOOPBACK_NAMES:
            raise InputError(
                f"host = {address.host!r} of {name} cannot be used: give a name of letters, digits, hyphens "
                f"and dots, or an IPv4 address, that the members can reach."
            )
        if address.port > _LAST_PORT:
            raise InputError(
                f"{name} has no port after the cloud's {layout.file.cloud.port}: lower cloud.port, or give "
                f"each of [[edges]] a port of its own."
            )
    spare = _LONGEST_NAME - max(len(f"-{name}") for name in servers)
    if len(layout.file.name) > spare:
        raise InputError(f"name is too long for certificates: take {spare} characters at most.")


def _make(layout: Layout, folder: Path, days: int) -> None:
    authorities = folder / AUTHORITIES
    if layout.edges:
        members = [site.name for site in layout.edges]
        kits = flare_kits(f"{layout.file.name}-cloud", layout.file.cloud, members, authorities, days)
        place_kit(kits[SERVER], folder / "cloud", "cloud", ".")
        for site in layout.edges:
            place_kit(kits[site.name], folder / site.name / MEMBER, "bridge", "..")
        for site, address in zip(layout.edges, layout.addresses, strict=True):
            members = [client.name for client in layout.clients if client.edge == site.edge]
            kits = flare_kits(f"{layout.file.name}-{site.name}", address, members, authorities, days)
            place_kit(kits[SERVER], folder / site.name / SERVER, "edge", "..")
            for name in members:
                place_kit(kits[name], folder / name, "client", ".")
    else:
        members = [client.name for client in layout.clients]
        kits = flare_kits(f"{layout.file.name}-cloud", layout.file.cloud, members, authorities, days)
        place_kit(kits[SERVER], folder / "cloud", "cloud", ".")
        for name in members:
            place_kit(kits[name], folder / name, "client", ".")
    for site in layout.sites:
        layout.write(site, folder / site.name)


def flare_kits(
    name: str, address: Address, members: Sequence[str], authorities: Path, days: int
) -> dict[str, Path]:
    """FLARE's kits of a server and its members, by name.

    Args:
        name: of the authority.
        address: of the server.
        members: their names.
        authorities: the folder of the authorities; one that is there signs the certificates.
        days: how long new certificates are valid.

    Raises:
        OSError: the kits cannot be written.
        InputError: FLARE cannot make them for another reason.
    """
    # FLARE's server listens only on loopback if it is named localhost.
    host = "localhost" if address.host in _LOOPBACK_NAMES else address.host
    own = not host[0].isdigit() and len(host) <= _LONGEST_NAME and host not in members
    server = host if own else name
    project = Project(name, "", props={"api_version": 3, "allow_log_streaming": False})
    ports = {"fed_learn_port": address.port, "admin_port": address.port}
    hosts = sorted({host, "127.0.0.1" if host == "localhost" else host})
    project.set_server(
        server,
        _ORGANIZATION,
        {**ports, "host_names": hosts, "default_host": host, "connection_security": "mtls"},
    )
    for member in members:
        project.add_client(member, _ORGANIZATION, {"allow_log_streaming": False})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme=address.driver),
        _LastingCertificates(days),
        SignatureBuilder(),
    ]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        context: ProvisionContext = Provisioner(str(authorities), builders).provision(project)
    if context.get(CtxKey.BUILD_ERROR):
        reason = output.getvalue().strip().splitlines()[-1]
        # FLARE prints errors instead of raising them.
        if of_disk := re.match(r"\w+: \[Errno (\d+)\]", reason):
            raise OSError(number := int(of_disk[1]), os.strerror(number))
        raise InputError(f"FLARE could not make the kits of {name} ({reason}): correct the federation file.")
    made = Path(context.get_result_location())
    _set_listening(made / server / "startup" / "fed_server.json", address)
    return {SERVER: made / server, **{member: made / member for member in members}}


def _set_listening(path: Path, address: Address) -> None:
    """Let a server listen elsewhere than where its members connect; FLARE knows one address for both."""
    if not address.listen_host and not address.listen_port:
        return
    values = json.loads(path.read_text(encoding="utf-8"))
    server = values["servers"][0]
    host, _, port = server["service"]["target"].rpartition(":")
    # FLARE listens on loopback if this is set, otherwise on all addresses.
    host = {"": host, "127.0.0.1": "localhost", "0.0.0.0": "0.0.0.0"}[address.listen_host]
    port = address.listen_port or int(port)
    server["service"]["target"], server["admin_server"], server["admin_port"] = f"{host}:{port}", host, port
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _set_logging(local: Path) -> None:
    """Print what a role logs, and warnings; FLARE's other lines stay in its log files."""
    settings = json.loads((local / "log_config.json.default").read_text(encoding="utf-8"))
    own = {"()": "nvflare.fuel.utils.log_utils.LoggerNameFilter", "logger_names": ["sfedhp"]}
    settings["filters"]["ownFilter"] = own
    settings["handlers"]["consoleHandler"]["filters"] = ["ownFilter"]
    (local / "log_config.json").write_text(json.dumps(settings, indent=4) + "\n", encoding="utf-8")


def place_kit(made: Path, kit: Path, role: str, site: str) -> None:
    """Move a FLARE kit into place, and add the component that starts the role.

    Args:
        made: FLARE's kit.
        kit: where it goes.
        role: the argument of the component: cloud, bridge, edge or client.
        site: the folder with `sfedhp.json`, as seen from the kit.
    """
    kit.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, kit)
    (kit / README).unlink()  # FLARE's, which says how to start FLARE
    local = kit / "local"
    _set_logging(local)
    resources: dict[str, Any] = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    if "servers" in resources:
        resources["servers"][0]["max_num_clients"] = 100_000
    component = {
        "id": "sfedhp",
        "path": "sfedhp.deploy.flare.component.RoleComponent",
        "args": {"role": role, "site": site},
    }
    resources["components"].append(component)
    resources["class_allow_list"] = [*resources["class_allow_list"], component["path"]]
    # An administrator has no rights, even with a valid certificate.
    roles = ("project_admin", "org_admin", "lead", "member")
    nothing = {"format_version": "1.0", "permissions": dict.fromkeys(roles, "none")}
    (local / "authorization.json").write_text(json.dumps(nothing) + "\n", encoding="utf-8")
    (local / "resources.json").write_text(json.dumps(resources, indent=2) + "\n", encoding="utf-8")

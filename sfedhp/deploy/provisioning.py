"""Kits: certificates and settings for every site, made by NVIDIA FLARE's provisioning.

The cloud and every edge is a federation of its own with a certificate authority of its own, so a certificate
of one lets nobody into another. No administrator is made: nobody can send jobs, that is code, to a site.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner

from sfedhp.deploy.federation import Address
from sfedhp.deploy.layout import Layout
from sfedhp.deploy.sites import MEMBER, SERVER
from sfedhp.types import InputError

AUTHORITIES: Final = "authorities"  # the folder of the certificate authorities; it belongs to nobody's kit
_ORGANIZATION: Final = "sfedhp"
_DAYS: Final = 3650


def make_kits(layout: Layout, folder: Path) -> list[Path]:
    """A kit for every site; the folders.

    Raises:
        InputError: the folder already holds kits, or they cannot be made.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: choose another folder for the kits with --out.")
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)  # private keys are in it
    authorities = folder / AUTHORITIES
    names = [site.name for site in layout.sites]
    if layout.edges:
        below = [site.name for site in layout.edges]
        kits = _provision(f"{layout.file.name}-cloud", layout.file.cloud, below, authorities)
        _place(kits[SERVER], folder / "cloud", "cloud", ".")
        for site in layout.edges:
            _place(kits[site.name], folder / site.name / MEMBER, "bridge", "..")
        for site, address in zip(layout.edges, layout.addresses, strict=True):
            below = [client.name for client in layout.clients if client.edge == site.edge]
            kits = _provision(f"{layout.file.name}-{site.name}", address, below, authorities)
            _place(kits[SERVER], folder / site.name / SERVER, "edge", "..")
            for name in below:
                _place(kits[name], folder / name, "client", ".")
    else:
        below = [client.name for client in layout.clients]
        kits = _provision(f"{layout.file.name}-cloud", layout.file.cloud, below, authorities)
        _place(kits[SERVER], folder / "cloud", "cloud", ".")
        for name in below:
            _place(kits[name], folder / name, "client", ".")
    for site in layout.sites:
        layout.write(site, folder / site.name)
    return [folder / name for name in names]


def _provision(name: str, address: Address, members: Sequence[str], authorities: Path) -> dict[str, Path]:
    """FLARE's kits of one federation: the server's and each member's."""
    # FLARE's server listens on loopback alone where its own name says so.
    host = "localhost" if address.host in ("127.0.0.1", "localhost", "::1") else address.host
    server = host if host.replace(".", "").replace("-", "").isalnum() and not host[0].isdigit() else name
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
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(root_valid_days=_DAYS),
        SignatureBuilder(),
    ]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        context: ProvisionContext = Provisioner(str(authorities), builders).provision(project)
    if context.get("build_error"):
        raise InputError(f"FLARE could not make the kits of {name}: {said.getvalue().strip()[-300:]}")
    made = Path(context.get_result_location())
    return {SERVER: made / server, **{member: made / member for member in members}}


def _place(made: Path, kit: Path, role: str, site: str) -> None:
    """Move a FLARE kit where it belongs, and let FLARE start the role in it.

    Args:
        made: FLARE's kit.
        kit: where it goes.
        role: which half of which role it is.
        site: the folder with `sfedhp.json`, as seen from the kit.
    """
    kit.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, kit)
    local = kit / "local"
    resources: dict[str, Any] = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    if "servers" in resources:
        resources["servers"][0]["max_num_clients"] = 100_000
    component = {"id": "sfedhp", "path": "sfedhp.deploy.flare.Station", "args": {"role": role, "site": site}}
    resources["components"].append(component)
    resources["class_allow_list"] = [*resources["class_allow_list"], component["path"]]
    # Whoever comes as an administrator, with whatever certificate, may do nothing.
    roles = ("project_admin", "org_admin", "lead", "member")
    nothing = {"format_version": "1.0", "permissions": dict.fromkeys(roles, "none")}
    (local / "authorization.json").write_text(json.dumps(nothing) + "\n", encoding="utf-8")
    (local / "resources.json").write_text(json.dumps(resources, indent=2) + "\n", encoding="utf-8")

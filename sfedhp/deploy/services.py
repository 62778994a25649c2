"""Files that run the roles of a federation unattended: systemd units, a compose file, a Helm chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sfedhp._version import __version__
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text, writing
from sfedhp.deploy.flare.supervisor import server_address
from sfedhp.deploy.site import FILE, SERVER, Site, read_site

IMAGE: Final = f"sfedhp:{__version__}"  # built by the Dockerfile of the repository
KITS: Final = "/var/lib/sfedhp"  # the folder of kits on machines and in containers
_PROGRAM: Final = "/opt/sfedhp/bin/sfedhp"
_REFUSED: Final = 2  # exit code of a role that was started with invalid settings

_UNIT: Final = """\
[Unit]
Description=sFedHP {name} of {federation}
After=network-online.target
Wants=network-online.target

[Service]
User=sfedhp
UMask=0077
ExecStart={program} {role} {kits}/{name}{data}
Restart=on-failure
RestartSec=5
RestartPreventExitStatus={refused}
Environment=OMP_NUM_THREADS={threads}
# A role writes into its kit and nowhere else.
ProtectSystem=strict
ReadWritePaths={kits}/{name}
ProtectHome=true
PrivateTmp=true
NoNewPrivileges=true
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX

[Install]
WantedBy=multi-user.target
"""

# The volume belongs to root, so tar could not set the rights of its top folder. Half a kit is never used.
_UNPACK: Final = (
    "[ -e {kits}/{name} ] || {{ rm -rf {kits}/.new && mkdir {kits}/.new && "
    "tar -xzf /secret/kit.tar.gz -C {kits}/.new && mv {kits}/.new {kits}/{name}; }}"
)


@dataclass(frozen=True)
class Service:
    """One role as a service."""

    site: Site
    port: int  # on which its server listens; 0: a client has none

    @property
    def command(self) -> list[str]:
        """The arguments with which `sfedhp` starts the role."""
        return [self.site.role, f"{KITS}/{self.site.name}"]


def services_of(kits: Path, names: Sequence[str] = ()) -> list[Service]:
    """The services of the roles whose kits are in a folder, or of the named ones.

    Raises:
        InputError: there is no such kit.
    """
    found = sorted(path.parent for path in kits.glob(f"*/{FILE}")) if not names else []
    folders = found or [kits / name for name in names]
    if not folders:
        raise InputError(f"There are no kits in {kits}: make them with `sfedhp provision`.")
    return [Service(read_site(folder), _port(folder)) for folder in folders]


def write_systemd(services: Sequence[Service], folder: Path) -> list[Path]:
    """Write one unit for each role."""
    paths = []
    for service in services:
        site = service.site
        text = _UNIT.format(
            name=site.name,
            federation=site.federation,
            program=_PROGRAM,
            role=site.role,
            kits=KITS,
            data=" data.source=/srv/data/rows.npz" if site.role == "client" else "",
            refused=_REFUSED,
            threads=4 if site.role == "client" else 1,
        )
        paths.append(_write(folder / f"sfedhp-{site.name}.service", text))
    return paths


def write_compose(services: Sequence[Service], folder: Path) -> list[Path]:
    """Write one compose file with a container for each role; JSON is YAML."""
    described: dict[str, Any] = {}
    for service in services:
        name = service.site.name
        described[name] = {
            "image": IMAGE,
            "command": service.command,
            "volumes": [f"./{name}:{KITS}/{name}"],
            "restart": "on-failure",
            "read_only": True,
            "tmpfs": ["/tmp"],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            **({"ports": [f"{service.port}:{service.port}"]} if service.port else {}),
        }
    text = json.dumps({"services": described}, indent=2) + "\n"
    return [_write(folder / "compose.yaml", text)]


def write_helm(services: Sequence[Service], folder: Path) -> list[Path]:
    """Write a Helm chart with one stateful set for each role, and a service for each server."""
    chart = folder / "chart"
    federation = services[0].site.federation
    described = {
        "apiVersion": "v2",
        "name": federation.lower(),
        "version": __version__,
        "appVersion": __version__,
    }
    values = {"image": IMAGE, "storage": "1Gi"}
    paths = [
        _write(chart / "Chart.yaml", json.dumps(described, indent=2) + "\n"),
        _write(chart / "values.yaml", json.dumps(values, indent=2) + "\n"),
    ]
    for service in services:
        documents = [_stateful_set(service), *([_service(service)] if service.port else [])]
        text = "".join(f"---\n{json.dumps(document, indent=2)}\n" for document in documents)
        # Helm replaces these; the rest is plain JSON, which is YAML.
        text = text.replace('"@image@"', "{{ .Values.image | quote }}")
        text = text.replace('"@storage@"', "{{ .Values.storage | quote }}")
        paths.append(_write(chart / "templates" / f"{service.site.name}.yaml", text))
    return paths


def _stateful_set(service: Service) -> dict[str, Any]:
    """A stateful set; its pod unpacks its kit from a secret at the first start, and keeps it on a volume."""
    name, labels = service.site.name, {"app": f"sfedhp-{service.site.name}"}
    mount = {"name": "kit", "mountPath": KITS}
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {
        "name": "role",
        "image": "@image@",
        "args": service.command,
        "volumeMounts": [mount, {"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": security,
        **({"ports": [{"containerPort": service.port}]} if service.port else {}),
    }
    unpack = {
        "name": "kit",
        "image": "@image@",
        "command": ["sh", "-c", _UNPACK.format(kits=KITS, name=name)],
        "volumeMounts": [mount, {"name": "secret", "mountPath": "/secret", "readOnly": True}],
        "securityContext": security,
    }
    pod = {
        "securityContext": {"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 10001},
        "initContainers": [unpack],
        "containers": [container],
        "volumes": [
            {"name": "secret", "secret": {"secretName": f"kit-{name}"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    claim = {
        "metadata": {"name": "kit"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "@storage@"}}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [claim],
        },
    }


def _service(service: Service) -> dict[str, Any]:
    name = service.site.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": f"sfedhp-{name}"}, "ports": [{"port": service.port}]},
    }


def _port(kit: Path) -> int:
    """The port on which the server of a kit listens; 0: it has none."""
    workspace = kit / SERVER if (kit / SERVER).exists() else kit
    address = server_address(workspace)
    return 0 if address is None else address[1]


def _write(path: Path, text: str) -> Path:
    with writing(path, "another folder with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return path

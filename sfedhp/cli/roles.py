"""Start a role of a deployment: replace this process by FLARE's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.deploy.flare.supervisor import check_port, command, process_environment
from sfedhp.deploy.site import Role, read_site


def require_flare() -> None:
    """Refuse to continue without NVIDIA FLARE.

    Raises:
        InputError: it is not installed.
    """
    if find_spec("nvflare") is None:
        raise InputError("NVIDIA FLARE is not installed: pip install 'sfedhp[deploy]'.")


def exec_role(
    role: Role,
    kit: Path,
    workspace: Path,
    data: Mapping[str, Any] | None = None,
    track: Sequence[str] = (),
) -> NoReturn:
    """Replace this process by FLARE's process of the kit, so that a service manager sees one process.

    Args:
        role: what the kit must be for.
        kit: the folder of the kit.
        workspace: the folder of FLARE's start-up files in the kit.
        data: the client's own [data] section, if it has data of its own.
        track: trackers that the cloud tells of its run.

    Raises:
        InputError: the kit is not for this role, is not whole, cannot be written, or is in use, or FLARE is
            missing.
    """
    require_flare()
    read_site(kit, role)
    if not os.access(kit, os.W_OK):
        raise InputError(f"{kit} cannot be written: a role keeps its state in its kit.")
    check_certificates(role, kit)
    with locked(kit):  # refuses a second process on the same kit here; the role locks it again
        argv = command(workspace)
        check_port(workspace)
    os.execve(argv[0], argv, process_environment(data=data, server=role != "client", track=track))


def check_certificates(role: Role, kit: Path) -> None:
    """Check the keys and certificates of a kit, without which FLARE waits forever and says nothing.

    Args:
        role: what the kit is for.
        kit: its folder.

    Raises:
        InputError: one is missing or cannot be read, or a key belongs to another certificate.
    """
    from sfedhp.deploy.certificates import expected_certificates, read_certificate, read_key

    for path in expected_certificates(kit, role):
        key = path.with_suffix(".key")
        for file in (path, key, path.with_name("rootCA.pem")):
            if not file.exists():
                raise InputError(f"{file} is missing: {_remedy(file)}.")
        read_certificate(path.with_name("rootCA.pem"))
        certificate = read_certificate(path)
        if read_key(key).public_key() != certificate.public_key():
            raise InputError(f"{key} is not the key of {path.name} beside it: {_remedy(key)}.")


def _remedy(file: Path) -> str:
    if file.name == "client.key":
        return f"copy the kit again, or put the client.key that `sfedhp request` made into {file.parent}"
    return "copy the kit again"

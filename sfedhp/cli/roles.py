"""Start a role of a deployment: replace this process by FLARE's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.deploy.flare.supervisor import check_port, command, environment
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
        InputError: the kit is not for this role, cannot be written, or is in use, or FLARE is missing.
    """
    require_flare()
    read_site(kit, role)
    if not os.access(kit, os.W_OK):
        raise InputError(f"{kit} cannot be written: a role keeps its state in its kit.")
    with locked(kit):  # refuses a second process on the same kit here; the role locks it again
        argv = command(workspace)
        check_port(workspace)
    os.execve(argv[0], argv, environment(data=data, server=role != "client", track=track))

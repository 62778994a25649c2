"""What the commands of a deployment share: reading what is to be deployed, and becoming a role."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click

from sfedhp.cli.options import read_settings
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.deploy.federation_file import FederationFile, read_federation
from sfedhp.deploy.flare.supervisor import check_port, command, environment
from sfedhp.deploy.site import Role, read_site


def needs_flare() -> None:
    """Refuse to go on where NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise InputError("NVIDIA FLARE is not installed: pip install 'sfedhp[deploy]'.")


def read_plan(words: Sequence[str]) -> tuple[FederationFile, Experiment]:
    """The federation of a file and the experiment it names, with settings of the command line."""
    files = [word for word in words if "=" not in word or word.endswith(".toml")]
    if len(files) != 1:
        raise InputError("Give one federation file, and settings as KEY=VALUE.")
    file = read_federation(Path(files[0]))
    settings = read_settings(
        [*([file.experiment] if file.experiment else []), *(word for word in words if word not in files)]
    )
    experiment = settings.experiment()
    for line in settings.left_out([experiment.algorithm_name]):
        click.echo(line, err=True)
    return file, experiment


def become(role: Role, kit: Path, workspace: Path, data: Mapping[str, Any] | None = None) -> NoReturn:
    """Become FLARE's process in the kit: a service manager then sees one process and its exit code."""
    needs_flare()
    read_site(kit, role)
    if not os.access(kit, os.W_OK):
        raise InputError(f"{kit} cannot be written: a role keeps its state in its kit.")
    with locked(kit):  # the role takes it again: here a second one on the same kit is refused in a sentence
        words = command(workspace)
        check_port(workspace)
    os.execve(words[0], words, environment(data=data, server=role != "client"))

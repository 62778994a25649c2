"""Read what to deploy: a federation file and its experiment; say how a deployment continues."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sfedhp.cli.output.console import print_notes
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.parsing import parse_toml
from sfedhp.deploy.federation_file import FederationFile, read_federation
from sfedhp.deploy.site import FILE, Role
from sfedhp.runs.settings import check_config_files, read_settings, split_words


def read_deployment(words: Sequence[str], *, without_file: bool = False) -> tuple[FederationFile, Experiment]:
    """The federation file named on the command line, and its experiment with the command line's settings.

    Args:
        words: of the command line.
        without_file: take the defaults if there is no file, as for a federation on one machine; the config
            of an experiment may take its place.

    Raises:
        InputError: there is not exactly one file, or a file or a setting cannot be used.
    """
    files, pairs = split_words(words)
    check_config_files(files)
    if len(files) != 1 and (files or not without_file):
        raise InputError("Give one federation file, and settings as KEY=VALUE.")
    if files and is_experiment(Path(files[0])):
        if not without_file:
            raise InputError(
                f"{files[0]} is the config of an experiment: name it in a federation file, as "
                f'experiment = "{files[0]}".'
            )
        file = FederationFile(experiment=files[0])
    else:
        file = read_federation(Path(files[0])) if files else FederationFile()
    if file.experiment and not Path(file.experiment).is_file():
        raise InputError(f"{files[0]}: experiment names {file.experiment}, and there is no such file.")
    settings = read_settings([*([file.experiment] if file.experiment else []), *pairs])
    experiment = settings.experiment()
    print_notes(settings.ignored_keys([experiment.algorithm_name]))
    return file, experiment


def is_experiment(path: Path) -> bool:
    """Whether a file has keys of an experiment that a federation file does not have."""
    try:
        keys = set(parse_toml(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False  # reading it as a federation file will say what is wrong
    return bool(keys - _keys(FederationFile)) and keys <= _keys(Experiment)


def kit_of(folder: Path) -> Path | None:
    """The kit that a folder is, or whose run it holds, or the cloud's of several kits; None for others."""
    if (folder / FILE).exists():
        return folder
    if (folder / "cloud" / FILE).exists():
        return folder / "cloud"
    beside = folder.absolute().parent
    return folder.parent if folder.name == "run" and (beside / FILE).exists() else None


def how_to_continue(kit: Path, role: Role) -> str:
    """How to continue a deployment whose roles have ended."""
    return (
        f"continue with `sfedhp {role} {shlex.quote(str(kit))}`, and start the roles of the other kits "
        f"again too, with `sfedhp edge` or `sfedhp client`."
    )


def _keys(kind: Any) -> set[str]:
    return {option.name for option in dataclasses.fields(kind)}

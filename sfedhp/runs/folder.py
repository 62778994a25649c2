"""The folder of a run: whether one can be made, making it, and reading what it holds."""

from __future__ import annotations

import contextlib
import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment, from_dict, to_dict, to_toml
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.data.schema import Schema
from sfedhp.runs.environment import environment
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.records import History, Row, read_rows, rows_of_run
from sfedhp.runs.scores import SCORE_FILES

_CONFIG, _ENVIRONMENT, _HISTORY, _SCHEMA = "config.toml", "environment.json", "history.jsonl", "schema.json"


def check_vacant(folder: Path) -> None:
    """Refuse a folder that already holds a run, before any time is spent on data.

    Raises:
        InputError: it does, or it is not a folder.
    """
    if holds_run(folder):
        raise InputError(
            f"{folder} already holds a run: choose another folder, or continue the run with "
            f"`sfedhp resume {folder}`."
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose a folder.")


def holds_run(folder: Path) -> bool:
    """Whether there is a run in this folder."""
    return (folder / _CONFIG).exists()


def create(prepared: Prepared, index: int, folder: Path) -> History:
    """Write the config and the environment of a run into its folder, and begin its history.

    Args:
        prepared: the run, or the stack it is in.
        index: its place there.
        folder: locked by this process, so that no two find it vacant.

    Raises:
        InputError: the folder cannot be written, or holds a run.
    """
    check_vacant(folder)
    try:
        # Checkpoints of an old run would count as later ones than the first of this.
        for old in folder.glob("checkpoint/round-*.safetensors"):
            old.unlink()
        for name in SCORE_FILES:
            (folder / name).unlink(missing_ok=True)
        write_text(folder / _ENVIRONMENT, json.dumps(_environment(prepared), indent=2) + "\n")
        (folder / _SCHEMA).unlink(missing_ok=True)
        add_schema(prepared, index, folder)
        write_text(folder / _CONFIG, to_toml(to_dict(prepared.experiments[index])))
        return History(folder / _HISTORY)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from None


def remove_created(folder: Path) -> None:
    """Remove the files that `create` wrote; no round finished, so there is nothing to resume."""
    for name in (_CONFIG, _ENVIRONMENT, _HISTORY, _SCHEMA):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it holds something else, which stays
        folder.rmdir()


def open_history(folder: Path, rounds: int) -> History:
    """The history of a run that continues after this many rounds.

    Raises:
        InputError: rows are missing.
    """
    path = folder / _HISTORY
    return History(path, rows_of_run(path, rounds))


def read_history(folder: Path) -> list[Row] | None:
    """The rounds in a run's history, as far as they can be read; None where there is no history."""
    path = folder / _HISTORY
    return [row for row in read_rows(path, sys.maxsize) if "seconds" in row] if path.exists() else None


def read_config(folder: Path) -> dict[str, Any]:
    """The tables of a run's `config.toml`, as they are in the file.

    Raises:
        InputError: the folder holds no run, or its config cannot be read.
    """
    path = folder / _CONFIG
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        why = "there is no config.toml in it" if folder.is_dir() else "there is no such folder"
        raise InputError(f"{folder} holds no run: {why}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): correct it, or restore it from a copy.") from None


def add_schema(prepared: Prepared, index: int, folder: Path) -> None:
    """Write shape, scaling, columns and classes of a run's data into its folder, unless they are there."""
    path = folder / _SCHEMA
    if not path.exists():
        schema = Schema.of(prepared.federations[index], prepared.experiments[index].data)
        write_text(path, json.dumps(schema.to_dict(), ensure_ascii=False, indent=1) + "\n")


def read_schema(folder: Path) -> Schema | None:
    """What `add_schema` wrote; None in the folder of an earlier version.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / _SCHEMA
    try:
        return Schema.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it from a copy.") from None


def read_experiment(folder: Path, algorithm: Algorithm | None = None) -> Experiment:
    """The experiment of the run in a folder.

    Args:
        folder: the run's.
        algorithm: the method, where it is the user's own.

    Raises:
        InputError: the folder holds no run, or its config cannot be read.
    """
    config = read_config(folder)
    try:
        return experiment_of(config, algorithm)
    except InputError as error:
        raise InputError(f"In {folder / _CONFIG}: {error}") from None


def experiment_of(config: Mapping[str, Any], algorithm: Algorithm | None) -> Experiment:
    """The experiment of a run's config; `algorithm` is the method where it is the user's own."""
    if algorithm is None:
        return from_dict(config)
    known = {name: value for name, value in config.items() if name != "algorithm"}
    return replace(from_dict(known), algorithm=algorithm)


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of a run's `environment.json`; empty where it is missing or damaged: no run needs it."""
    try:
        known = json.loads((folder / _ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def update_environment(folder: Path, **more: str) -> None:
    """Add to a run's `environment.json` what is known only at its end."""
    write_text(folder / _ENVIRONMENT, json.dumps(read_environment(folder) | more, indent=2) + "\n")


def _environment(prepared: Prepared) -> dict[str, Any]:
    simulator = prepared.simulator
    return environment(
        simulator.initial.device,
        simulator.task.network.d,
        runs_at_once=len(prepared.experiments),
        clients_at_once=simulator.clients_at_once,
        gradients=str(simulator.task.gradient_path),
        captured=str(simulator.graph_status),
    )

"""The folder of a run: checks, creates and reads it."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment, from_dict, to_dict, to_toml
from sfedhp.core.checksums import DamagedError, checked, with_checksum
from sfedhp.core.errors import InputError, Note
from sfedhp.core.files import remove_temporary_files, write_text, writing
from sfedhp.core.parsing import parse_json, parse_toml
from sfedhp.data.schema import Schema
from sfedhp.runs import checkpoints
from sfedhp.runs.environment import environment
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.record_file import RecordFile, Row
from sfedhp.runs.records import History, rows_of_run, whole_rounds
from sfedhp.runs.score_files import SCORE_FILES, SUMMARY_FILE

_CONFIG, _ENVIRONMENT, _SCHEMA = "config.toml", "environment.json", "schema.json"
_HISTORY, _LEDGER = "history.jsonl", "ledger.jsonl"
SUBFOLDERS: Final = ("checkpoint", "models")  # in the folder of a run


def check_vacant(folder: Path) -> None:
    """Refuse a folder that already holds a run, before data is loaded.

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
    results = (f"{_HISTORY}*", f"{_LEDGER}*", *SCORE_FILES, SUMMARY_FILE)
    for pattern in (*results, *(f"{name}/*.safetensors" for name in SUBFOLDERS)):
        for found in sorted(folder.glob(pattern)):
            raise InputError(
                f"{folder} has no config.toml, but a file that a run would replace, "
                f"{found.relative_to(folder)}: choose another folder, or move that file."
            )


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
    with writing(folder, "another folder"):
        remove_temporary_files(folder, *SUBFOLDERS)
        write_environment(folder, _environment(prepared))
        (folder / _SCHEMA).unlink(missing_ok=True)
        add_schema(prepared, index, folder)
        write_config(folder, prepared.experiments[index])
        return History(folder / _HISTORY)


def remove_created(folder: Path) -> None:
    """Remove the files that `create` wrote; no round finished, so there is nothing to resume."""
    for name in (_CONFIG, _ENVIRONMENT, _HISTORY, f"{_HISTORY}.crc32", _SCHEMA):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it contains other files, which stay
        folder.rmdir()


def open_history(folder: Path, rounds: int, *, counted: bool, written: bool = False) -> History:
    """The history of a run that continues after this many rounds.

    Args:
        folder: the run's.
        rounds: of its checkpoint.
        counted: whether bytes are counted, so that there is a ledger.
        written: whether the run has ended, so that nothing is written.

    Raises:
        InputError: rows are missing or damaged; nothing was changed.
    """
    try:
        rows = rows_of_run(folder / _HISTORY, rounds)
        if counted:
            rows_of_run(folder / _LEDGER, rounds, ledger=True)
    except InputError as error:
        raise InputError(f"{error} {_what_is_whole(folder, rounds, counted)}") from None
    return History(folder / _HISTORY, rows, written=written)


def whole_rounds_of(folder: Path, *, counted: bool) -> int:
    """How many rounds of a run are undamaged in its history and, if bytes are counted, in its ledger."""
    names = (_HISTORY, _LEDGER) if counted else (_HISTORY,)
    return min(whole_rounds(folder / name) for name in names)


def keep_damaged(folder: Path, *, counted: bool) -> None:
    """Copy a damaged history or ledger to `NAME.damaged`, before it is cut to what is whole.

    One that is whole has perhaps been cut already, by a command that was killed then: its copy stays.
    """
    for name in (_HISTORY, _LEDGER) if counted else (_HISTORY,):
        path = folder / name
        if path.exists() and whole_rounds(path) < path.read_bytes().count(b"\n"):
            shutil.copyfile(path, folder / f"{name}.damaged")


def read_history(folder: Path) -> list[Row] | None:
    """The rounds in a run's history; None if there is no history.

    Raises:
        DamagedError: a line of it is damaged.
    """
    try:
        return [row for row in RecordFile(folder / _HISTORY).rows() if "seconds" in row]
    except FileNotFoundError:
        return None


def _what_is_whole(folder: Path, rounds: int, counted: bool) -> str:
    """A sentence on the undamaged rounds of a run with a damaged history or ledger, and how to continue."""
    whole = whole_rounds_of(folder, counted=counted)
    older = [each for each in checkpoints.rounds_in(folder / "checkpoint") if each <= whole]
    if not older or whole >= rounds:
        return f"Rounds 1 to {whole} are whole." if whole else "No round before the damage is whole."
    return (
        f"Rounds 1 to {whole} are whole: `sfedhp resume {folder} --salvage` continues from the "
        f"checkpoint of round {max(older)}, and keeps the damaged files beside the new ones."
    )


def write_config(folder: Path, experiment: Experiment) -> None:
    """Write every option of a run to its `config.toml`."""
    write_text(folder / _CONFIG, to_toml(to_dict(experiment)))


def read_config(folder: Path) -> dict[str, Any]:
    """The tables of a run's `config.toml`, as they are in the file.

    Raises:
        InputError: the folder holds no run, or its config cannot be read.
    """
    path = folder / _CONFIG
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if several := sorted(folder.glob(f"*/{_CONFIG}")):
            raise InputError(
                f"{folder} holds several runs: name one of them, such as {several[0].parent}. To continue a "
                f"sweep, repeat its command with --out {folder}."
            ) from None
        why = "there is no config.toml in it" if folder.is_dir() else "there is no such folder"
        raise InputError(f"{folder} holds no run: {why}.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): correct it, or restore it from a copy.") from None


def add_schema(prepared: Prepared, index: int, folder: Path) -> None:
    """Write shape, scaling, columns and classes of a run's data into its folder, unless they are there.

    Damaged ones are replaced, with a note.
    """
    path = folder / _SCHEMA
    try:
        known = read_schema(folder)
    except DamagedError:
        warnings.warn(f"{path} is damaged: it is written again.", Note, stacklevel=2)
        known = None
    if known is None:
        schema = Schema.of(prepared.federations[index], prepared.experiments[index].data)
        content = with_checksum(schema.to_dict())
        write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def read_schema(folder: Path) -> Schema | None:
    """The schema that `add_schema` wrote; None in the folder of an earlier version.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / _SCHEMA
    try:
        return Schema.from_dict(checked(path, parse_json(path.read_bytes())))
    except FileNotFoundError:
        return None
    except DamagedError as error:
        raise DamagedError(f"{str(error).rstrip('.')}: restore it from a copy.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedError(f"{path} is damaged ({error}): restore it from a copy.") from None


def read_experiment(folder: Path, algorithm: Algorithm | None = None) -> Experiment:
    """The experiment of the run in a folder.

    Args:
        folder: the run's.
        algorithm: the method, if it is the user's own.

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


def write_environment(folder: Path, values: Mapping[str, Any]) -> None:
    """Write what `runs.environment.environment` gave to `environment.json`, with a checksum."""
    write_text(folder / _ENVIRONMENT, json.dumps(with_checksum(values), indent=2) + "\n")


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of a run's `environment.json`; empty if it is missing. No run needs it.

    A damaged one is empty too, with a note.
    """
    try:
        return _read_environment(folder / _ENVIRONMENT)
    except (OSError, DamagedError) as error:
        warnings.warn(f"{error} It is left out.", Note, stacklevel=2)
        return {}


def holds_environment(folder: Path) -> bool:
    """Whether a run's `environment.json` is there and undamaged."""
    try:
        return bool(_read_environment(folder / _ENVIRONMENT))
    except (OSError, DamagedError):
        return False


def update_environment(folder: Path, **more: str) -> None:
    """Add to a run's `environment.json` what is known only at its end; a damaged one is replaced."""
    try:
        known = _read_environment(folder / _ENVIRONMENT)
    except DamagedError as error:  # it must not cost the run its end
        warnings.warn(f"{error} It is replaced, without its old content.", Note, stacklevel=2)
        known = {}
    write_environment(folder, known | more)


def _read_environment(path: Path) -> dict[str, Any]:
    """The content of `environment.json`; nothing if there is none.

    Raises:
        DamagedError: it is damaged.
    """
    try:
        known = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise DamagedError(f"{path} is damaged: it is not a JSON object.")
    return checked(path, known)


def _environment(prepared: Prepared) -> dict[str, Any]:
    simulator = prepared.simulator
    return environment(
        simulator.initial.device,
        simulator.task.network.d,
        runs_at_once=len(prepared.experiments),
        clients_at_once=simulator.clients_at_once,
        gradients=str(simulator.task.gradient_path),
        precision=simulator.task.precision,
        captured=str(simulator.graph_status),
    )

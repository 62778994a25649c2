"""Imports a user's code, named `package.module:name` in a config, and turns its errors into messages."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sfedhp.core.errors import InputError, did_you_mean


def is_import(name: str) -> bool:
    """Whether a name is that of a user's own code."""
    return ":" in name


def import_named(key: str, name: str) -> Any:
    """The object of this name.

    Args:
        key: of the config, for messages.
        name: `package.module:name`.

    Raises:
        InputError: it cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if module.endswith(".py") or "/" in module:
        file = Path(module)
        raise InputError(
            f"{key} = {name!r} names a file: write {file.stem}:{attribute or 'NAME'}, and start the command "
            f"where {file.stem}.py is, or name its folder in PYTHONPATH."
        )
    first = module.partition(".")[0]
    absent = bool(first) and find_spec(first) is None
    remedy = f"start the command where {first}.py is, or name its folder in PYTHONPATH" if absent else ""
    failure = f"{key} = {name!r} cannot be imported"
    with user_code(failure, remedy):
        found = importlib.import_module(module)
        if not hasattr(found, attribute):
            callables = [each for each, value in vars(found).items() if callable(value)]
            hint = did_you_mean(attribute, callables, "correct the name.", lambda near: f"{module}:{near}")
            raise InputError(f"{failure}, because {module} has no {attribute}: {hint}")
        return getattr(found, attribute)


def what_to_name(name: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a message about a name that is neither known nor that of a user's own code.

    Args:
        name: as the user gave it.
        known: the right names.
        otherwise: what to do if none is near.
    """
    module, _, attribute = name.rpartition(".")
    if module:
        return f"write {module}:{attribute}, with a colon before the name in the module."
    return did_you_mean(name, known, otherwise)


@contextmanager
def user_code(failure: str, remedy: str = "") -> Iterator[None]:
    """Run a user's code, which may raise anything.

    Args:
        failure: what an error of it means.
        remedy: what to do then.

    Raises:
        InputError: the code raised an error. The sentence is "failure (error): remedy."; an `InputError` of
            the code itself passes.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{failure} ({reason_of(error)}){': ' if remedy else ''}{remedy}.") from error


def reason_of(error: Exception) -> str:
    """An error raised by a user's code as a phrase: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__

"""A user's own code, named as `package.module:name` in a config."""

from __future__ import annotations

import importlib
from typing import Any

from sfedhp.core.errors import InputError


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
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's file may raise anything
        raise InputError(f"{key} = {name!r} cannot be imported ({reason_of(error)}).") from error


def reason_of(error: Exception) -> str:
    """An error raised by a user's code as a phrase: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__

"""A user's own method, given as `package.module:Class` instead of the name of a built-in one."""

from __future__ import annotations

import dataclasses
import inspect

from sfedhp.algorithms.base import Algorithm
from sfedhp.core.errors import InputError
from sfedhp.core.imports import import_named

_names: dict[type[Algorithm], str] = {}  # of classes that were imported by name


def import_method(name: str) -> type[Algorithm]:
    """The class of a user's method.

    Args:
        name: `package.module:Class`.

    Raises:
        InputError: it cannot be imported, or is not a method whose options all have defaults.
    """
    kind = import_named("algorithm", name)
    if not isinstance(kind, type) or not issubclass(kind, Algorithm) or inspect.isabstract(kind):
        raise InputError(
            f"algorithm = {name!r} is not a method: name a subclass of sfedhp.Algorithm with a client_step."
        )
    for option in dataclasses.fields(kind):
        if option.default is dataclasses.MISSING and option.default_factory is dataclasses.MISSING:
            raise InputError(f"algorithm = {name!r}: its option {option.name} has no default: give it one.")
    _names[kind] = name
    return kind


def name_of(kind: type[Algorithm]) -> str:
    """The name of a user's method: `package.module:Class` if imported so, else its class in lower case."""
    return _names.get(kind, kind.__name__.lower())

"""Types of config options: bounds, help texts, and the check of values against them."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union

from sfedhp.core.errors import InputError
from sfedhp.core.scalars import Scalar


@dataclass(frozen=True)
class Bounds:
    """The values a numeric option may take, in the annotation of its field: `Annotated[int, Bounds(1)]`."""

    least: float = float("-inf")
    most: float = float("inf")
    exclusive: bool = False  # `least` itself is rejected

    def admits(self, value: float) -> bool:
        """Whether the value is within the bounds; NaN is not."""
        low = value > self.least if self.exclusive else value >= self.least
        return low and value <= self.most

    def __str__(self) -> str:
        if self.most == float("inf"):
            return f"above {self.least:g}" if self.exclusive else f"at least {self.least:g}"
        if self.exclusive:
            return f"above {self.least:g} and at most {self.most:g}"
        return f"from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Help:
    """The help text of an option, in its annotation: `rate: Annotated[Rate, Help("η, the step size")]`."""

    text: str


NAMES = tuple[str, ...]  # a list of names; in a config file ["a", "b"], as a word [a,b] or a,b
COUNTS = tuple[int, ...]  # a list of whole numbers; in a config file [2, 4], as a word [2,4] or 2,4

# Kinds of options, for the fields of algorithms and sections.
Count: TypeAlias = Annotated[int, Bounds(1)]
CountOrOff: TypeAlias = Annotated[int, Bounds(0)]
Rate: TypeAlias = Annotated[Scalar, Bounds(0, exclusive=True)]
Strength: TypeAlias = Annotated[Scalar, Bounds(0)]
Share: TypeAlias = Annotated[Scalar, Bounds(0, 1)]


def fields_of(kind: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass in the order in which they are listed: those by keyword only are last."""
    return sorted(dataclasses.fields(kind), key=lambda field: bool(field.kw_only))


@cache
def types_of(kind: Any) -> dict[str, Any]:
    """The type of each field of a dataclass, with its `Annotated` notes."""
    return typing.get_type_hints(kind, include_extras=True)


@cache
def help_of(kind: Any) -> dict[str, str]:
    """The help text of each field of a dataclass that has one."""
    hints = types_of(kind)
    notes = {
        field.name: [
            note.text for note in getattr(hints[field.name], "__metadata__", ()) if isinstance(note, Help)
        ]
        for field in dataclasses.fields(kind)
    }
    return {name: texts[-1] for name, texts in notes.items() if texts}


def fields_of_type(kind: Any, alias: Any) -> list[str]:
    """The names of a dataclass's fields of a type such as `Rate`, with or without a help text."""
    hints, wanted = types_of(kind), typing.get_args(alias)
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if typing.get_args(hints[name])[: len(wanted)] == wanted]


def check_options(options: Any, section: str = "") -> None:
    """Check that every value of a dataclass of options is of its field's type and within its `Bounds`.

    A field of type float accepts an int. A field of type int, which counts something, refuses every float. A
    list, as TOML and JSON have it, becomes a tuple.

    Raises:
        InputError: names the option, the value and what is allowed.
    """
    own_type: Any = type(options)  # mypy does not accept `type[Any]` as the key of a cache
    for field, (kinds, bounds) in _allowed(own_type).items():
        value, name = getattr(options, field), f"{section}{field}"
        if isinstance(value, list) and (NAMES in kinds or COUNTS in kinds):
            value = tuple(value)
            object.__setattr__(options, field, value)
        if not any(_is_of(value, kind) for kind in kinds):
            raise InputError(f"{name} = {value!r} {_refusal(value, kinds, bounds)}")
        if bounds is not None:
            if isinstance(value, tuple) and not all(bounds.admits(one) for one in value):
                raise InputError(f"{name} = {list(value)} is out of range: each must be {bounds}.")
            # A `PerRun` has a value for each run; other types (None, text) have no bounds.
            numbers = [value] if isinstance(value, int | float) else getattr(value, "tolist", list)()
            for one in numbers:
                if not bounds.admits(one):
                    raise InputError(f"{name} = {one!r} is out of range: it must be {bounds}.")


@cache
def _allowed(kind: Any) -> dict[str, tuple[list[Any], Bounds | None]]:
    """The types that each field of a dataclass allows, and the bounds of its numbers."""
    hints = types_of(kind)
    return {field.name: _parts(hints[field.name]) for field in dataclasses.fields(kind)}


def _parts(hint: Any) -> tuple[list[Any], Bounds | None]:
    """The types that an annotation allows, and the bounds of the numbers among them."""
    if typing.get_origin(hint) is Annotated:
        kinds, inner = _parts(hint.__origin__)
        return kinds, next((note for note in hint.__metadata__ if isinstance(note, Bounds)), inner)
    if typing.get_origin(hint) in (Union, types.UnionType):
        members = [_parts(member) for member in typing.get_args(hint)]
        found = [bounds for _, bounds in members if bounds is not None]
        return [kind for kinds, _ in members for kind in kinds], found[0] if found else None
    return [hint], None


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; a bool is not a number here."""
    if typing.get_origin(kind) is Literal:
        return any(isinstance(value, type(known)) and value == known for known in typing.get_args(kind))
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if kind in (NAMES, COUNTS):
        each_kind = str if kind == NAMES else int
        return isinstance(value, tuple) and all(_is_of(each, each_kind) for each in value)
    try:
        return isinstance(value, typing.get_origin(kind) or kind)
    except TypeError:  # `Any` or a protocol, which isinstance does not take
        return True


def _refusal(value: Any, kinds: list[Any], bounds: Bounds | None) -> str:
    """The error message for a value of none of these types, with a remedy."""
    if getattr(value, "ndim", None) == 0:  # a scalar of NumPy or torch
        return "is a scalar of NumPy or torch: convert it with .item()."
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            *others, last = map(str, typing.get_args(kind))
            words = f"{', '.join(others)} or {last}" if others else last
            return f"is not known: use {words}."
    if NAMES in kinds and isinstance(value, str):
        return f'is text and not a list of names: write ["{value}"].'
    if NAMES in kinds:
        return "is not a list of names: write [a, b]; in a file with each name in quotes."
    if COUNTS in kinds and int in kinds:
        return "is neither a whole number nor a list of them: write one, or a list such as [2, 4]."
    if COUNTS in kinds:
        return "is not a list of whole numbers: write one such as [2, 4]."
    if int in kinds or float in kinds:
        whole = "whole " if float not in kinds else ""
        if bounds is None:
            return f"is not a {whole}number: write one."
        return f"is not a {whole}number: it must be {bounds}."
    if str in kinds:
        return "is not text: write it in quotes."
    if bool in kinds:
        return "is neither true nor false: use one of them."
    kinds = [kind for kind in kinds if kind is not types.NoneType]
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    return f"cannot be used: {_instead(value, kinds) or f'it must be of the type {names}'}."


def _instead(value: Any, kinds: list[Any]) -> str:
    """What to write instead of a class, or of the first option of a section; empty: it is not known."""
    if isinstance(value, type) and any(isinstance(kind, type) and issubclass(value, kind) for kind in kinds):
        return f"write {value.__name__}(), an instance instead of the class"
    sections: list[Any] = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    for kind in sections:
        for first in fields_of(kind)[:1]:
            if any(_is_of(value, each) for each in _allowed(kind)[first.name][0]):
                return f"write {kind.__name__}({first.name}={value!r})"
    return ""

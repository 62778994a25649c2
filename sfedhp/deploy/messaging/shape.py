"""Shapes of untrusted JSON: small predicates that are combined into a description of what is accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Shape = Callable[[Any], bool]
_LIMIT: Final = 2**53  # above it a float no longer holds every integer
_LONGEST: Final = 64  # characters of a name


def count(value: Any) -> bool:
    """A nonnegative integer that a float holds exactly; not `true` or `false`."""
    return type(value) is int and 0 <= value < _LIMIT


def number(value: Any) -> bool:
    """A finite number of reasonable size."""
    return type(value) in (int, float) and abs(value) < _LIMIT


def any_float(value: Any) -> bool:
    """A number that may also be infinite or NaN."""
    return isinstance(value, float) or number(value)


def text(value: Any) -> bool:
    """Whether a value is a string, of any length."""
    return isinstance(value, str)


def name(value: Any) -> bool:
    """A short string without control characters, which may be shown to an operator."""
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()


def flag(value: Any) -> bool:
    """Accepts true and false, not 1 and 0."""
    return isinstance(value, bool)


def optional(shape: Shape) -> Shape:
    """A shape that accepts null too."""
    return lambda value: value is None or shape(value)


def list_of(shape: Shape) -> Shape:
    """A list of any length whose items have the shape."""
    return lambda value: isinstance(value, list) and all(shape(item) for item in value)


def tuple_of(*shapes: Shape) -> Shape:
    """A list with one item for each shape."""

    def check(value: Any) -> bool:
        if not (isinstance(value, list) and len(value) == len(shapes)):
            return False
        return all(shape(item) for shape, item in zip(shapes, value, strict=True))

    return check


def dict_of(shape: Shape) -> Shape:
    """An object with any short names whose values have the shape."""

    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(name(key) and shape(item) for key, item in value.items())

    return check


@dataclass(frozen=True)
class Record:
    """An object with known names, each with its shape. They are optional, and other names are ignored."""

    fields: Mapping[str, Shape]
    exact: bool = False  # all names have to be there, and no others

    def __call__(self, value: Any) -> bool:
        """Whether a value is such an object."""
        if not isinstance(value, dict) or (self.exact and value.keys() != self.fields.keys()):
            return False
        return all(shape(value[name]) for name, shape in self.fields.items() if name in value)

    def known(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The known names of an object, without the others."""
        return {name: value[name] for name in self.fields if name in value}

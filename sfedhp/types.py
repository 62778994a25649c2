"""The words everything else is written in: clock, batch, bounds of options, and errors that speak."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor


class InputError(ValueError):
    """Bad input from a user: one clear sentence that says what to do. The command ends with exit code 2."""


class Clock(NamedTuple):
    """When something happens: schedules and keyed draws depend on it."""

    cloud_round: int | Tensor  # a 0-dim tensor where a round is captured as a graph
    edge_round: int = 0


class Batch(NamedTuple):
    """Rows a client computes with; the leading axes are the stack."""

    inputs: Tensor  # (..., rows, *shape)
    labels: Tensor  # (..., rows)
    real: Tensor  # (..., rows) bool: False where a row only pads a shorter client


@dataclass(frozen=True)
class Bounds:
    """The values a numeric option may take; stands in `Annotated[...]` on the option's field."""

    least: float = float("-inf")
    most: float = float("inf")
    exclusive: bool = False  # `least` itself is refused

    def admits(self, value: float) -> bool:
        """Whether the value lies within."""
        low = value > self.least if self.exclusive else value >= self.least
        return low and value <= self.most  # False for NaN

    def __str__(self) -> str:
        if self.most == float("inf"):
            return f"above {self.least:g}" if self.exclusive else f"at least {self.least:g}"
        if self.exclusive:
            return f"above {self.least:g} and at most {self.most:g}"
        return f"from {self.least:g} to {self.most:g}"


def check_bounds(options: Any, section: str = "") -> None:
    """Refuse a dataclass of options in which a value is outside the `Bounds` or `Literal` of its field.

    An option that is a whole number refuses a float, even one without a fraction: it counts something.

    Raises:
        InputError: names the option, the value and what is allowed.
    """
    hints = typing.get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), f"{section}{field.name}"
        parts = _parts(hints[field.name])
        whole = int in parts and float not in parts
        for hint in parts:
            if typing.get_origin(hint) is typing.Literal:
                allowed = typing.get_args(hint)
                if isinstance(value, str) and value not in allowed:
                    words = ", ".join(map(str, allowed[:-1])) + f" or {allowed[-1]}"
                    raise InputError(f"{name} = {value!r} is not known: use {words}.")
            elif isinstance(hint, Bounds) and value is not None:
                each = value.tolist() if hasattr(value, "tolist") else [value]
                for one in each:
                    if not isinstance(one, int | float) or isinstance(one, bool):
                        kind = "a whole number, " if whole else ""
                        raise InputError(f"{name} = {one!r} is not a number: it must be {kind}{hint}.")
                    if whole and not isinstance(one, int):
                        raise InputError(f"{name} = {one!r} is not a whole number: it must be {hint}.")
                    if not hint.admits(one):
                        raise InputError(f"{name} = {one!r} is out of range: it must be {hint}.")


def _parts(hint: Any) -> list[Any]:
    """A hint's own parts: the members of its unions and the notes of its `Annotated`s, flattened."""
    parts = [hint, *getattr(hint, "__metadata__", ())]
    if typing.get_origin(hint) is not typing.Literal:
        parts += [part for arg in typing.get_args(hint) for part in _parts(arg)]
    return parts

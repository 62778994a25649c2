"""Every key of a config: its type, default, choices and help text, from the dataclasses of options."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from sfedhp.algorithms import ALGORITHMS, is_method, method_class
from sfedhp.config import Experiment, tables_of
from sfedhp.core.errors import InputError
from sfedhp.core.imports import what_to_name
from sfedhp.core.options import fields_of, help_of, types_of
from sfedhp.runs.provenance import METHOD

# Words that other programs or `sweep` use, and what to write here instead.
_MEANT: Final = {
    "seeds": "seed=7 sets one, and `sfedhp sweep algorithm=sfedhp,fedavg seeds=3` repeats each with three",
    "clients": "edges times clients_per_edge is their number: edges=2 clients_per_edge=3 are 6 clients",
}


class Option(NamedTuple):
    """One key that can be set."""

    key: str  # with its sections: data.source
    kind: Any  # the type of its value, with `Annotated` notes
    default: Any
    help: str

    @property
    def types(self) -> tuple[Any, ...]:
        """The types a value may have, without notes and unions."""
        return tuple(_plain_types(self.kind))

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, where there is a list of them."""
        return tuple(
            choice
            for kind in self.types
            if typing.get_origin(kind) is typing.Literal
            for choice in typing.get_args(kind)
        )


@cache
def default_method() -> str:
    """The name of the method that runs if none is chosen."""
    return Experiment().algorithm_name


@cache
def common_options() -> dict[str, Option]:
    """The options of every experiment, by key; without those of the method."""
    return {
        option.key: option
        for option in _options("", Experiment)
        if not option.key.startswith("algorithm.")  # those of the default method
    }


@cache
def method_options(method: str) -> dict[str, Option]:
    """The options of a method in [algorithm], by key."""
    return {option.key: option for option in _options("algorithm", method_class(method))}


def option_of(method: str, key: str) -> Option | None:
    """The option that a key sets when this method runs; None if the method does not use the key."""
    section, _, name = key.rpartition(".")
    known = common_options() | method_options(method)
    return known.get(f"algorithm.{name}" if section == method else key)


@cache
def all_keys(own: tuple[str, ...] = ()) -> frozenset[str]:
    """Every key that can be written: common ones, those of all methods, and `METHOD.KEY` for one method.

    Args:
        own: names of the user's methods.
    """
    keys = {METHOD, *common_options()}
    for method in (*ALGORITHMS, *own):
        options = method_options(method)
        keys |= {*options, *(key.replace("algorithm.", f"{method}.") for key in options)}
    return frozenset(keys)


@cache
def config_tables() -> dict[str, str]:
    """The help text of every table of a config, nested ones included: `links.client_edge`."""
    return dict(_tables("", Experiment))


def full_key(key: str) -> str:
    """The key without abbreviation: `algorithm=fedavg` is short for `algorithm.name=fedavg`."""
    return METHOD if key == "algorithm" else key


def check_method(key: str, name: Any) -> str:
    """The name, if it is one of the methods.

    Raises:
        InputError: it is not; names the nearest one. Or it is the user's own, and cannot be used.
    """
    if isinstance(name, str) and is_method(name):
        method_class(name)
        return name
    use = f"use {', '.join(ALGORITHMS)}, or package.module:Class."
    raise InputError(f"{key} = {name!r} is not a method: {what_to_name(str(name), ALGORITHMS, use)}")


def check_key(key: str, own: tuple[str, ...] = ()) -> None:
    """Refuse a key that does not exist.

    Args:
        key: in full.
        own: names of the user's methods.

    Raises:
        InputError: names the nearest key.
    """
    known = all_keys(own)
    if key in known:
        return
    if key in _MEANT:
        raise InputError(f"There is no key {key}: {_MEANT[key]}.")
    if key in config_tables():
        (first,) = keys_named(key)
        raise InputError(f"{key} is a section and not a key: write {key}.KEY=VALUE, for example {first}=…")
    # A right name in the wrong section, or in none, is as common as a misspelt one.
    candidates = _keys_by_name(own)
    for wanted in (key, key.rpartition(".")[2]):
        if near := difflib.get_close_matches(wanted, candidates, n=1):
            raise InputError(f"There is no key {key}: did you mean {' or '.join(candidates[near[0]])}?")
    raise InputError(f"There is no key {key}: `sfedhp run --help-all` lists all keys.")


def keys_named(name: str) -> list[str]:
    """The keys that someone may mean by a name: itself, one of this section, or those of this last part."""
    if full_key(name) in all_keys():
        return [name]
    if name in config_tables():
        return [next(key for key in common_options() if key.startswith(f"{name}."))]
    return _keys_by_name().get(name, [])


def _keys_by_name(own: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """All keys in full, by what may be written for them: themselves, or their last part."""
    keys: dict[str, list[str]] = {}
    for full in sorted(all_keys(own)):
        section, _, name = full.rpartition(".")
        keys.setdefault(full, []).append(full)
        if section and not is_method(section):
            keys.setdefault(name, []).append(full)
    return keys


def _options(section: str, kind: Any) -> Iterator[Option]:
    types, helps, tables = types_of(kind), help_of(kind), tables_of(kind)
    for field in fields_of(kind):
        key = f"{section}.{field.name}" if section else field.name
        if field.name in tables:
            yield from _options(key, tables[field.name])
        else:
            yield Option(key, types[field.name], field.default, helps.get(field.name, ""))


def _tables(prefix: str, kind: Any) -> Iterator[tuple[str, str]]:
    for name, inner in tables_of(kind).items():
        yield f"{prefix}{name}", help_of(kind).get(name, "")
        yield from _tables(f"{prefix}{name}.", inner)


def _plain_types(kind: Any) -> Iterator[Any]:
    origin = typing.get_origin(kind)
    if origin in (typing.Literal, tuple, None):
        yield kind
    else:
        parts = typing.get_args(kind)
        for part in parts[:1] if origin is typing.Annotated else parts:
            yield from _plain_types(part)

"""From a config file and key=value words to an experiment.

The dataclasses of the library are the one definition of every option; pydantic turns TOML values and
command-line text into their types, and the library checks their ranges.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sfedhp.algorithms import ALGORITHMS
from sfedhp.config import Experiment, from_dict, tables_of
from sfedhp.core.errors import InputError
from sfedhp.core.options import help_of
from sfedhp.wire.direction import Direction

METHOD = "algorithm.name"
STUDY = "reproduce"  # a table of experiment files that only `sfedhp reproduce` reads


class Option(NamedTuple):
    """One key a user may set."""

    key: str  # as users write it
    kind: Any  # its type
    default: Any
    help: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, where there are only some."""
        return tuple(_literals(self.kind))


class Setting(NamedTuple):
    """One key that a user did set."""

    key: str
    value: Any
    typed: bool  # a TOML value; else text of the command line


@dataclass(frozen=True)
class Settings:
    """Everything the user set, from weak to strong: the last one of a key decides."""

    entries: tuple[Setting, ...]

    @property
    def method(self) -> str:
        """The name of the method that was asked for."""
        named = [entry.value for entry in self.entries if entry.key == METHOD]
        return check_method(METHOD, named[-1]) if named else Experiment().algorithm_name

    def experiment(self, method: str | None = None) -> Experiment:
        """The experiment of the method that was asked for, or of this one; it takes the keys it has.

        Raises:
            InputError: a value is of the wrong type, out of range, or does not fit another.
        """
        method = method or self.method
        config: dict[str, Any] = {"algorithm": {"name": method}}
        for entry in self.entries:
            option = option_of(method, entry.key)
            if option is not None:
                section, _, name = option.key.rpartition(".")
                place = config
                for table in filter(None, section.split(".")):
                    place = place.setdefault(table, {})
                place[name] = _value(option, entry)
        return from_dict(config)

    def left_out(self, methods: Sequence[str]) -> list[str]:
        """A line for each key of one of the eight, or of a link, that none of these methods has."""
        lines = {}
        for entry in self.entries:
            section, _, name = entry.key.rpartition(".")
            if section in ALGORITHMS and section not in methods:
                lines[entry.key] = f"{entry.key} is left out: {section} does not run here."
            elif section == "algorithm" and entry.key != METHOD:
                having = [each for each in ALGORITHMS if f"algorithm.{name}" in method_options(each)]
                if not set(having) & set(methods):
                    owner, runs = ", ".join(having), ", ".join(methods)
                    lines[entry.key] = f"{entry.key} is left out: it is a key of {owner}, not of {runs}."
            elif section.startswith("links.") and entry.value != "none":
                tiers = 2 if section == f"links.{Direction.CLIENT_CLOUD}" else 3
                if all(ALGORITHMS[each].tiers != tiers for each in methods):
                    runs = ", ".join(methods)
                    lines[entry.key] = (
                        f"{entry.key} is left out: only methods of {tiers} tiers, not {runs}, have this link."
                    )
        return list(lines.values())


def read_settings(words: Sequence[str]) -> Settings:
    """What the words of a command set: `key=value`, and at most one config file.

    Raises:
        InputError: an unknown key (the nearest right one is named), or a file that cannot be read.
    """
    files = [word for word in words if is_file(word)]
    if len(files) > 1:
        raise InputError(
            f"Only one config file can be given, not {' and '.join(files)}: write settings as key=value."
        )
    entries: list[Setting] = []
    for file in files:
        table = {name: value for name, value in read_toml(Path(file)).items() if name != STUDY}
        entries += _general_first(_flattened(table))
    pairs = [word.partition("=") for word in words if word not in files]
    entries += _general_first(Setting(full_key(key.strip()), text, False) for key, _, text in pairs)
    known = set(common_options()) | {METHOD}
    for method in ALGORITHMS:
        own = method_options(method)
        known |= set(own) | {key.replace("algorithm.", f"{method}.") for key in own}
    for entry in entries:
        if entry.key not in known:
            raise InputError(_unknown(entry.key, known))
    return Settings(tuple(entries))


def is_file(word: str) -> bool:
    """Whether a word of a command is a config file; folders of a sweep have `=` in their names."""
    return "=" not in word or word.endswith(".toml")


@cache
def common_options() -> dict[str, Option]:
    """The keys that every experiment has, by name."""
    return {
        option.key: option
        for option in _options("", Experiment)
        if not option.key.startswith("algorithm.")  # those are the method's
    }


@cache
def method_options(method: str) -> dict[str, Option]:
    """The keys of a method in [algorithm], by name."""
    return {option.key: option for option in _options("algorithm", ALGORITHMS[method])}


def option_of(method: str, key: str) -> Option | None:
    """What a key sets where this method runs; None where it says nothing to it."""
    section, _, name = key.rpartition(".")
    known = common_options() | method_options(method)
    return known.get(f"algorithm.{name}" if section == method else key)


@cache
def config_tables() -> dict[str, str]:
    """The help text of every table of a config, also of tables within others, as `links.client_edge`."""
    return dict(_tables("", Experiment))


def check_method(key: str, name: Any) -> str:
    """The name, if it is one of the methods.

    Raises:
        InputError: it is not; the nearest is named.
    """
    if isinstance(name, str) and name in ALGORITHMS:
        return name
    near = difflib.get_close_matches(str(name), ALGORITHMS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"use {', '.join(ALGORITHMS)}."
    raise InputError(f"{key} = {name!r} is not a method: {hint}")


def _options(section: str, kind: Any) -> Iterator[Option]:
    hints, helps, tables = typing.get_type_hints(kind, include_extras=True), help_of(kind), tables_of(kind)
    for field in dataclasses.fields(kind):
        key = f"{section}.{field.name}" if section else field.name
        if field.name in tables:
            yield from _options(key, tables[field.name])
        else:
            yield Option(key, hints[field.name], field.default, helps.get(field.name, ""))


def _tables(prefix: str, kind: Any) -> Iterator[tuple[str, str]]:
    for name, inner in tables_of(kind).items():
        yield f"{prefix}{name}", help_of(kind).get(name, "")
        yield from _tables(f"{prefix}{name}.", inner)


def _literals(kind: Any) -> Iterator[str]:
    if typing.get_origin(kind) is typing.Literal:
        yield from typing.get_args(kind)
    else:
        for part in typing.get_args(kind):
            yield from _literals(part)


def _value(option: Option, entry: Setting) -> Any:
    """The value in the option's type. TOML has types of its own, which must fit; text is read as the type."""
    adapter = TypeAdapter(option.kind, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))
    try:
        if entry.typed:
            return adapter.validate_python(entry.value, strict=True)
        return adapter.validate_strings(entry.value)
    except ValidationError as error:
        # A number that may differ between runs has a second type, which no user can write: the first counts.
        first = error.errors()[0]
        # Behind a comma stands what was found instead; but the words of a choice have commas too.
        wanted = first["msg"] if first["type"] == "literal_error" else first["msg"].partition(",")[0]
        wanted = wanted.removeprefix("Input ")
        raise InputError(f"{entry.key} = {entry.value!r} cannot be used: it {wanted}.") from None


def read_toml(path: Path) -> Mapping[str, Any]:
    """The tables of a config file.

    Raises:
        InputError: there is no such file, or it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"There is no file {path}: give a config file (.toml), and settings as key=value."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read as a config file: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a config file: it is not text in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from None


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (value or key not in {*config_tables(), *ALGORITHMS}):
            # An empty table of an unknown name is kept, to be refused by that name.
            yield from _flattened(value, f"{key}.") if value else (Setting(key, value, True),)
        elif not isinstance(value, Mapping):
            yield Setting(full_key(key), value, True)


def full_key(key: str) -> str:
    """`algorithm=fedavg` is short for `algorithm.name=fedavg`."""
    return METHOD if key == "algorithm" else key


def _general_first(entries: Iterable[Setting]) -> list[Setting]:
    """Within one source, what is said of one method alone is stronger than what is said of all."""
    return sorted(entries, key=lambda entry: entry.key.partition(".")[0] in ALGORITHMS)


def _unknown(key: str, known: Iterable[str]) -> str:
    if key in config_tables():
        first = next(option for option in common_options() if option.startswith(f"{key}."))
        return f"{key} is a section and not a key: write {key}.KEY=VALUE, for example {first}=…"
    # The right name in the wrong section, or in none, is meant as often as a misspelt one.
    candidates: dict[str, list[str]] = {}
    for full in sorted(known):
        section, _, name = full.rpartition(".")
        candidates.setdefault(full, []).append(full)
        if section and section not in ALGORITHMS:
            candidates.setdefault(name, []).append(full)
    for wanted in (key, key.rpartition(".")[2]):
        if near := difflib.get_close_matches(wanted, candidates, n=1):
            return f"There is no key {key}: did you mean {' or '.join(candidates[near[0]])}?"
    return f"There is no key {key}: `sfedhp run --help` lists them all."

"""A user's settings: a config file and `key=value` words, and the experiment that they define.

The dataclasses of options are the only definition of keys. TOML values have types; the text of a word is
parsed as the type of its key. The dataclass itself rejects values that do not fit a key.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sfedhp.algorithms import ALGORITHMS, is_method, method_class
from sfedhp.algorithms.under_edges import UnderEdges
from sfedhp.config import Experiment, from_dict
from sfedhp.core.errors import InputError
from sfedhp.core.options import COUNTS, NAMES
from sfedhp.core.parsing import parse_toml
from sfedhp.data.registry import FILES, beside
from sfedhp.runs.config_keys import (
    Option,
    check_key,
    check_method,
    config_tables,
    default_method,
    full_key,
    method_options,
    option_of,
)
from sfedhp.runs.provenance import METHOD
from sfedhp.wire.direction import Direction

STUDY = "reproduce"  # a table of an experiment file that describes a study of the paper and sets no key
_WHOLE = re.compile(r"[+-]?\d+")
_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


class Setting(NamedTuple):
    """One key with the value it was set to."""

    key: str
    value: Any
    typed: bool  # a TOML value; otherwise text


@dataclass(frozen=True)
class Settings:
    """All settings; the last of several values of one key counts."""

    entries: tuple[Setting, ...]
    own: tuple[str, ...] = ()  # methods of the user that are named
    study: bool = False  # whether the file has a study, with sections for several methods

    @property
    def method(self) -> str:
        """The name of the chosen method."""
        names = [entry.value for entry in self.entries if entry.key == METHOD]
        return check_method(METHOD, names[-1]) if names else default_method()

    def with_pairs(self, pairs: Iterable[str]) -> Settings:
        """These settings and `key=value` words, which override them.

        Raises:
            InputError: a key is unknown; the nearest one is named.
        """
        texts = [pair.partition("=") for pair in pairs]
        typed = _general_first(Setting(full_key(key.strip()), text, False) for key, _, text in texts)
        entries = (*self.entries, *typed)
        named = [entry.value for entry in entries if entry.key == METHOD and entry.value not in [*ALGORITHMS]]
        methods = tuple(dict.fromkeys([*self.own, *(check_method(METHOD, name) for name in named)]))
        for entry in entries:
            check_key(entry.key, methods)
        return Settings(entries, methods, self.study)

    def sets(self, key: str) -> bool:
        """Whether the key was set."""
        return any(entry.key == key for entry in self.entries)

    def experiment(self, method: str | None = None) -> Experiment:
        """The experiment of the chosen method, or of the one given; keys it does not have are ignored.

        Raises:
            InputError: a value has the wrong type, is out of range, or does not fit another.
        """
        method = method or self.method
        config: dict[str, Any] = {"algorithm": {"name": method}}
        for entry in self.entries:
            option = option_of(method, entry.key)
            if option is not None:
                section, _, name = option.key.rpartition(".")
                table = config
                for part in filter(None, section.split(".")):
                    table = table.setdefault(part, {})
                table[name] = _value(option, entry)
        if method != self.method and issubclass(method_class(method), UnderEdges):
            _drop_edge_rounds(config["algorithm"])
        return from_dict(config)

    def ignored_keys(self, methods: Sequence[str]) -> list[str]:
        """A sentence for each key that was set and that none of these methods uses."""
        lines = {}
        for entry in self.entries:
            section, _, name = entry.key.rpartition(".")
            if is_method(section) and section not in methods:
                if self.study and entry.typed:
                    continue  # `sfedhp reproduce` runs this method
                lines[entry.key] = f"{entry.key} is ignored: {section} does not run here."
            elif section == "algorithm" and entry.key != METHOD:
                known = dict.fromkeys((*ALGORITHMS, *self.own))
                owners = [each for each in known if f"algorithm.{name}" in method_options(each)]
                if not set(owners) & set(methods):
                    lines[entry.key] = (
                        f"{entry.key} is ignored: it is a key of {', '.join(owners)}, "
                        f"not of {', '.join(methods)}."
                    )
            elif section.startswith("links.") and entry.value != "none":
                tiers = 2 if section == f"links.{Direction.CLIENT_CLOUD}" else 3
                if all(self.experiment(each).algorithm.tiers != tiers for each in methods):
                    lines[entry.key] = (
                        f"{entry.key} is ignored: only methods with {tiers} tiers have this link, "
                        f"not {', '.join(methods)}."
                    )
        return list(lines.values())


class Words(NamedTuple):
    """The words of a command, sorted into files and `key=value` settings."""

    files: tuple[str, ...]  # config files
    pairs: tuple[str, ...]  # key=value


def split_words(words: Iterable[str]) -> Words:
    """Tell config files and `key=value` apart; a folder of a `.toml` file may have `=` in its name."""
    words = tuple(words)
    files = tuple(word for word in words if "=" not in word or word.endswith(".toml"))
    return Words(files, tuple(word for word in words if word not in files))


def check_config_files(files: Iterable[str]) -> None:
    """Refuse words that are data or no file at all, before they are read as config files.

    Raises:
        InputError: says where data is named, or how settings are written.
    """
    for file in files:
        if file.lower().endswith(FILES):
            raise InputError(f"{file} is data and not a config file (.toml): write data.source={file}.")
        if not file.endswith(".toml") and not Path(file).exists():
            raise InputError(
                f"{file} is neither a config file (.toml) nor key=value: write no spaces around = or after "
                f"commas."
            )


def read_settings(words: Iterable[str], own: Iterable[str] = ()) -> Settings:
    """The settings of `key=value` words and of at most one config file; words override the file.

    Args:
        words: as typed.
        own: names of further methods of the user's own, whose keys may be set.

    Raises:
        InputError: a key is unknown (the nearest one is named), or the file cannot be read.
    """
    files, pairs = split_words(words)
    check_config_files(files)
    if len(files) > 1:
        raise InputError(
            f"Only one config file can be given, not {' and '.join(files)}: write settings as key=value."
        )
    settings = Settings((), tuple(own))
    for file in files:
        tables = dict(read_toml(file))
        study = tables.pop(STUDY, None) is not None
        entries = _general_first(_located(entry, Path(file).parent) for entry in _table_entries(tables))
        settings = Settings(tuple(entries), settings.own, study)
    return settings.with_pairs(pairs)


def read_toml(path: str | Path) -> Mapping[str, Any]:
    """The tables of a config file.

    Raises:
        InputError: there is no such file, or it is not TOML.
    """
    try:
        return parse_toml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"There is no file {path}: give a config file (.toml), and settings as key=value."
        ) from None
    except IsADirectoryError:
        remedy = f"name {path}/config.toml" if Path(path, "config.toml").exists() else "name a file in it"
        raise InputError(f"{path} is a folder and no config file (.toml): {remedy}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read as a config file: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a config file: it is not UTF-8 text.") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from None


def _table_entries(table: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _table_entries(value, f"{key}.")
        elif isinstance(value, Mapping) and key in {*config_tables(), *ALGORITHMS}:
            continue  # an empty section sets nothing; `check_key` rejects unknown names
        else:
            yield Setting(full_key(key), value, True)


def _located(entry: Setting, folder: Path) -> Setting:
    """The entry of a config file in this folder, to which its paths are relative."""
    if not isinstance(entry.value, str) or not entry.value:
        return entry
    if entry.key == "data.source":
        return entry._replace(value=beside(entry.value, folder))
    if entry.key == "model.initial":
        return entry._replace(value=str(folder / Path(entry.value).expanduser()))
    return entry


def _general_first(entries: Iterable[Setting]) -> list[Setting]:
    """Within one source a key of one method (`pfedme.KEY`) overrides the key of all (`algorithm.KEY`)."""
    return sorted(entries, key=lambda entry: is_method(entry.key.rpartition(".")[0]))


def _value(option: Option, entry: Setting) -> Any:
    """The value in the option's type; unchanged where it does not fit, for the dataclass to refuse.

    Raises:
        InputError: the number is infinite or NaN.
    """
    value = entry.value if entry.typed else _parsed(entry.value, option.types)
    if float in option.types and isinstance(value, int) and not isinstance(value, bool):
        value = _float(str(value))  # an integer is a valid float
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{entry.key} = {entry.value!r} is not a finite number: write one.")
    return value


def _parsed(text: str, types: Sequence[Any]) -> Any:
    """The value of the first type as which the text can be read; otherwise the text."""
    for kind in types:
        if kind is int and re.fullmatch(r"\s*[+-]?\d[\d_]*(\.0*)?\s*", text):
            digits = text.partition(".")[0]
            # A longer number is out of every range; Python does not convert thousands of digits.
            return int(digits) if len(digits) < 100 else text
        if kind is float and (number := _float(text)) is not None:
            return number
        # If a single name is allowed too, only brackets make a list.
        if kind == NAMES and (str not in types or text.strip().startswith("[")):
            return _list(text)
        if kind == COUNTS and (parts := _list(text)) and all(map(_WHOLE.fullmatch, parts)):
            return tuple(map(int, parts))
        if kind is bool and text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
    return text


def _list(text: str) -> tuple[str, ...]:
    """The parts of `[a,b]` or `a,b`; one with a comma of its own is in double quotes."""
    text = text.strip()
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    parts = next(csv.reader([inner], skipinitialspace=True), [])
    return tuple(part.strip() for part in parts if part.strip())


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _drop_edge_rounds(algorithm: dict[str, Any]) -> None:
    """Leave out edge rounds that were meant for another method: without edges they have no effect."""
    if not algorithm.get("under_edges"):
        algorithm.pop("edge_rounds", None)

"""The grid of a sweep: the experiments that `KEY=A,B`, `K1+K2=A,B` and `seeds=N` describe."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sfedhp.core.errors import InputError
from sfedhp.core.imports import is_import
from sfedhp.core.options import NAMES
from sfedhp.runs.config_keys import default_method, full_key, option_of
from sfedhp.runs.provenance import METHOD
from sfedhp.runs.settings import split_words


class GridPoint(NamedTuple):
    """One experiment of a grid."""

    setting: tuple[tuple[str, str], ...]  # the keys that vary with their values, without the seed
    words: tuple[str, ...]  # everything that is set, as for `read_settings`

    @property
    def name(self) -> str:
        """The name of its folder: the last parts of the keys, and the values."""
        parts = [f"{key.rpartition('.')[2]}={value}" for key, value in self.setting]
        return ",".join(part.replace("/", "_").replace(":", ".") for part in parts)


def own_methods(points: Sequence[GridPoint]) -> list[str]:
    """The methods of the user's own that are named in the words of any point."""
    pairs = [word.partition("=") for point in points for word in split_words(point.words).pairs]
    values = [value for key, _, value in pairs if full_key(key.strip()) == METHOD]
    return [name for name in dict.fromkeys(values) if is_import(name)]


def grid(words: Iterable[str]) -> list[GridPoint]:
    """Every combination of the values in the words, seeds innermost.

    Raises:
        InputError: a key or a value is given twice, or `seeds` is not a number of repeats.
    """
    files, pairs = split_words(words)
    fixed: list[str] = []
    axes: list[list[tuple[tuple[str, str], ...]]] = []
    seeds: list[str] = []
    varied: dict[str, str] = {}  # the word that varies a key
    for word in pairs:
        keys, _, values = word.partition("=")
        if keys == "seeds":
            if not values.isdecimal() or int(values) < 1:
                raise InputError(f"seeds={values} is not a number of repeats: write for example seeds=3.")
            seeds = [f"seed={seed}" for seed in range(int(values))]
            _add_once("seed", word, varied)
        elif len(parts := _values(values)) > 1 or "+" in keys:
            for key in keys.split("+"):
                _check_not_a_list(full_key(key.strip()), values)
            axis = [tuple((key, value) for key in keys.split("+")) for value in parts]
            if len(set(axis)) < len(axis):
                raise InputError(f"{word} has the same value twice: give each once.")
            axes.append(axis)
            for key in keys.split("+"):
                _add_once(full_key(key.strip()), word, varied)
        else:
            fixed.append(word)
    for word in fixed:
        _add_once(full_key(word.partition("=")[0].strip()), word, dict(varied))
    points = []
    for combination in itertools.product(*axes):
        setting = tuple(pair for pairs_of_axis in combination for pair in pairs_of_axis)
        own = [f"{key}={value}" for key, value in setting]
        repeats = [(*own, seed) for seed in seeds] or [tuple(own)]
        points += [GridPoint(setting, (*files, *fixed, *repeat)) for repeat in repeats]
    return points


def _check_not_a_list(key: str, values: str) -> None:
    """Refuse `KEY=A,B` for a key whose value is a list of names: it may be one list, or two values to try."""
    option = option_of(default_method(), key)
    if option is not None and NAMES in option.types and "[" not in values:
        each = ",".join(f"[{value}]" for value in values.split(","))
        raise InputError(
            f"{key}={values} may be one list or several values: write {key}=[{values}] for the list, or "
            f"{key}={each} to try each."
        )


def _values(text: str) -> list[str]:
    """The values between commas; a list in brackets is one value."""
    return re.split(r",(?![^\[]*\])", text)


def _add_once(key: str, word: str, varied: dict[str, str]) -> None:
    if key in varied:
        raise InputError(f"{key} is given twice, in {varied[key]} and in {word}: leave one of them out.")
    varied[key] = word

"""Studies: experiment files with a [reproduce] table, and the list of those that `sfedhp reproduce` knows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.paper.packaged import packaged_experiments
from sfedhp.runs.grid import grid
from sfedhp.runs.settings import (
    STUDY,
    Settings,
    check_config_files,
    read_settings,
    read_toml,
    split_words,
)

_LISTS: Final[Mapping[str, Any]] = tomllib.loads(
    files("sfedhp.paper").joinpath("studies.toml").read_text(encoding="utf-8")
)
STUDIES: Final[tuple[str, ...]] = tuple(_LISTS["order"])
# Those that are not of the paper: they have tables of their own, and `all` does not run them.
BEYOND: Final[tuple[str, ...]] = tuple(_LISTS["beyond"])
# Those that are not simply a table or figure of the paper.
MORE: Final = (*(name for name in STUDIES if not re.fullmatch(r"(table|fig)\d", name)), *BEYOND)
# How the paper's text can be understood, in words; everything is judged by the main one.
READINGS: Final[Mapping[str, str]] = _LISTS["readings"]
MAIN_READING, OTHER_READING, _ = READINGS
# Names of groups of studies.
COLLECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "all": STUDIES,
    **{name: tuple(members) for name, members in _LISTS["collections"].items()},
}
_REQUIRED: Final = {"table": str, "reading": str, "variants": dict}  # keys of a [reproduce] table
_OPTIONAL: Final[Mapping[str, tuple[type, Any]]] = {
    "published": (dict, {}),
    "choice": (str, "personal"),
    "paper": (bool, True),
    "seeds": (int, 3),
    "choice_rounds": (int, 0),
    "choice_seeds": (int, 3),
}


@dataclass(frozen=True)
class Point:
    """One experiment of a variant, without its seed."""

    words: str  # what it sets, as the file has it
    experiment: Experiment


@dataclass(frozen=True)
class Study:
    """An experiment file with a [reproduce] table."""

    name: str
    table: str  # the table or figure of the paper it belongs to
    reading: str  # how the paper's text was understood: one of `READINGS`; "" where it is not about the paper
    paper: bool  # whether the paper has numbers to compare it with
    seeds: int  # each variant runs with the seeds 0, 1, …
    choice_rounds: int  # rounds of the trial runs that decide between the points of a variant
    choice_seeds: int  # seeds of the trial runs
    variants: Mapping[str, tuple[Point, ...]]
    choice: str = "personal"  # trials are compared by "personal" models, or by the mean of all "tiers"
    published: Mapping[str, float] = field(default_factory=dict)  # accuracies that others print, by variant


def read_study(path: str | Path) -> Study:
    """Read the study of an experiment file.

    Raises:
        InputError: there is no such file, it is not TOML, its [reproduce] table is missing or not complete,
            or one of its settings cannot be used.
    """
    path = Path(path)
    if not path.exists():
        known = ", ".join(studies_in(path.parent))
        raise InputError(
            f"There is no {path}{f' beside {known}' if known else ''}: name the folder of the experiment "
            f"files with --experiments; those of the package are used in a folder without `experiments`."
        )
    table = read_toml(path).get(STUDY)
    if not isinstance(table, dict):
        raise InputError(f"{path} has no [{STUDY}] table: see experiments/table2.toml for an example.")
    _check_table(path, table)
    settings = read_settings([str(path)])
    variants = {name: tuple(_points(settings, words)) for name, words in table["variants"].items()}
    more = {key: table.get(key, default) for key, (_, default) in _OPTIONAL.items()}
    return Study(path.stem, table["table"], table.get("reading", ""), variants=variants, **more)


def read_studies(
    experiments: str | Path | None = None,
    names: Iterable[str] = ("all",),
    *,
    skip_missing: bool = False,
    known: Iterable[Study] = (),
) -> list[Study]:
    """Read several studies from the folder of the experiment files.

    Args:
        experiments: the folder; None: `experiments` here where it holds studies, else the package's own.
        names: studies, or collections of them: `all`, `table1`.
        skip_missing: read of a collection only the studies that the folder has.
        known: studies of this folder that were read before; their files are not read again.

    Raises:
        InputError: a name is unknown, a study has no file, or a file cannot be used.
    """
    folder = experiments_folder() if experiments is None else Path(experiments)
    names = list(names)
    wanted = expand(names)
    if skip_missing:
        kept = {
            *studies_in(folder, (*STUDIES, *BEYOND)),
            *expand(name for name in names if name not in COLLECTIONS),
        }
        wanted = [name for name in wanted if name in kept] or wanted[:1]
    by_name = {study.name: study for study in known}
    return [by_name.get(name) or read_study(folder / f"{name}.toml") for name in wanted]


def experiments_folder() -> Path:
    """The folder `experiments` in the current folder if it has studies, else that of the package."""
    here = Path("experiments")
    return here if studies_in(here) else packaged_experiments()


def studies_in(experiments: Path, names: Sequence[str] = STUDIES) -> list[str]:
    """The names of the studies that a folder has files of; of the paper's, unless others are asked for."""
    return [name for name in names if (experiments / f"{name}.toml").exists()]


def expand(names: Iterable[str]) -> list[str]:
    """The names of the studies, each once; a collection is replaced by its members.

    Raises:
        InputError: a name is unknown.
    """
    studies: list[str] = []
    for name in names:
        if name not in (*COLLECTIONS, *STUDIES, *BEYOND):
            choices = ", ".join((*COLLECTIONS, *STUDIES, *BEYOND))
            raise InputError(f"There is nothing called {name!r} to reproduce: choose from {choices}.")
        studies += COLLECTIONS.get(name, (name,))
    return list(dict.fromkeys(studies))


def with_variants(studies: Sequence[Study], prefixes: Sequence[str]) -> list[Study]:
    """The studies with only those variants whose names begin with one of the prefixes; without any, with all.

    Raises:
        InputError: no name begins with a prefix; lists the names.
    """
    names = list(dict.fromkeys(variant for study in studies for variant in study.variants))
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise InputError(f"No variant begins with {prefix!r}: there are {'; '.join(names)}.")
    return [
        replace(
            study,
            variants={
                name: points
                for name, points in study.variants.items()
                if not prefixes or name.startswith(tuple(prefixes))
            },
        )
        for study in studies
    ]


def _check_table(path: Path, table: Mapping[str, Any]) -> None:
    beyond = path.stem in BEYOND
    for key, type_ in _REQUIRED.items():
        if beyond and key == "reading":
            continue
        if not isinstance(table.get(key), type_):
            raise InputError(
                f"The [{STUDY}] table of {path} has no {key}: see experiments/table2.toml for an example."
            )
    if not beyond and table["reading"] not in READINGS:
        raise InputError(
            f"reading = {table['reading']!r} in {path} is unknown: write one of {', '.join(READINGS)}."
        )
    for key, (exact, default) in _OPTIONAL.items():
        if type(table.get(key, default)) is not exact:
            raise InputError(
                f"{key} = {table[key]!r} in {path} cannot be used: write for example {str(default).lower()}."
            )
    for name, words in table["variants"].items():
        if not isinstance(words, str):
            raise InputError(
                f"The variant {name} = {words!r} in {path} cannot be used: write its settings as one string, "
                f'for example "algorithm=fedavg".'
            )


def _points(settings: Settings, words: str) -> Iterator[Point]:
    """One point for each combination of values separated by commas."""
    check_config_files(split_words(words.split()).files)  # a word without = is no setting
    for point in grid(words.split()):
        yield Point(" ".join(point.words), settings.with_pairs(point.words).experiment())

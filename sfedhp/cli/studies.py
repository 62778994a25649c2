"""Experiment files with a [reproduce] table, as studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sfedhp.cli.commands.sweep import grid
from sfedhp.cli.options import STUDY, read_settings, read_toml
from sfedhp.core.errors import InputError
from sfedhp.paper.published import TABLES
from sfedhp.paper.studies import Point, Study

COLLECTIONS: Final = ("all", "table1")  # what is made of several files
FIGURES: Final = ("fig2", "fig3", "fig4", "fig5", "speedup")
_NEEDED: Final = {"table": str, "reading": str, "variants": dict}  # keys of a [reproduce] table
_MORE: Final[Mapping[str, tuple[type, Any]]] = {"paper": (bool, True), "choice_rounds": (int, 0)}
# In the order in which they are worth running.
ALL: Final = (
    *(*TABLES, *FIGURES, "table2-per-pixel", "table3-per-pixel"),
    *(f"{table}-{kind}" for kind in ("as-written", "extras") for table in TABLES),
)


def names_of(targets: Iterable[str]) -> list[str]:
    """The files of what was asked for; Table 1 is made of the rows of tables 2 to 7.

    Raises:
        InputError: one of them is not known.
    """
    names: list[str] = []
    for target in targets:
        if target not in (*COLLECTIONS, *ALL):
            raise InputError(
                f"There is nothing called {target!r} to reproduce: choose from all, table1, {', '.join(ALL)}."
            )
        names += ALL if target == "all" else TABLES if target == "table1" else (target,)
    return list(dict.fromkeys(names))


def read_study(path: Path) -> Study:
    """The study of an experiment file.

    Raises:
        InputError: there is no such file, it is not TOML, it has no [reproduce] table or not all of one, or
            one of its settings cannot be used.
    """
    if not path.exists():
        there = files_of(path.parent)
        known = f" beside {', '.join(there)}" if there else ""
        raise InputError(
            f"There is no {path}{known}: run this in a checkout of sfedhp, or name the folder with "
            f"--experiments."
        )
    table = read_toml(path).get(STUDY)
    if not isinstance(table, dict):
        raise InputError(f"{path} has no [{STUDY}] table: see experiments/table2.toml for one.")
    for key, kind in _NEEDED.items():
        if not isinstance(table.get(key), kind):
            raise InputError(
                f"The [{STUDY}] table of {path} has no {key}: see experiments/table2.toml for one."
            )
    for key, (exact, default) in _MORE.items():
        if type(table.get(key, default)) is not exact:
            raise InputError(
                f"{key} = {table[key]!r} in {path} cannot be used: write for example {str(default).lower()}."
            )
    for name, words in table["variants"].items():
        if not isinstance(words, str):
            raise InputError(
                f"The variant {name} = {words!r} in {path} cannot be used: write what it sets as one text, "
                f'for example "algorithm=fedavg".'
            )
    variants = {name: tuple(_points(path, words.split())) for name, words in table["variants"].items()}
    more = {key: table.get(key, default) for key, (_, default) in _MORE.items()}
    return Study(path.stem, table["table"], table["reading"], variants=variants, **more)


def files_of(experiments: Path) -> list[str]:
    """The names of the experiment files that a folder has."""
    return [name for name in ALL if (experiments / f"{name}.toml").exists()]


def narrowed(studies: Sequence[Study], only: Sequence[str]) -> list[Study]:
    """The studies with those of their variants whose names begin with one of these; without any: with all.

    Raises:
        InputError: no name begins so; those that there are are named.
    """
    names = list(dict.fromkeys(variant for study in studies for variant in study.variants))
    for beginning in only:
        if not any(name.startswith(beginning) for name in names):
            raise InputError(f"No variant begins with {beginning!r}: there are {'; '.join(names)}.")
    return [
        replace(
            study,
            variants={
                name: points
                for name, points in study.variants.items()
                if not only or name.startswith(tuple(only))
            },
        )
        for study in studies
    ]


def _points(path: Path, words: Sequence[str]) -> Iterable[Point]:
    """One for each combination of the values that stand with commas between them."""
    for point in grid(words):
        yield Point(" ".join(point.words), read_settings([str(path), *point.words]).experiment())

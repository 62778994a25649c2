"""Experiment files with a [reproduce] table, as studies."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from sfedhp.cli.options import STUDY, read_settings
from sfedhp.cli.sweep import grid
from sfedhp.reproduction.paper import TABLES
from sfedhp.reproduction.studies import Point, Study
from sfedhp.types import InputError

FIGURES: Final = ("fig2", "fig3", "fig4", "fig5", "speedup")
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
        if target not in ("all", "table1", *ALL):
            raise InputError(
                f"There is nothing called {target!r} to reproduce: choose from all, table1, {', '.join(ALL)}."
            )
        names += ALL if target == "all" else TABLES if target == "table1" else (target,)
    return list(dict.fromkeys(names))


def read_study(path: Path, only: Sequence[str] = ()) -> Study:
    """The study of an experiment file.

    Args:
        path: the file.
        only: of its variants those whose names begin with one of these; empty: all.

    Raises:
        InputError: there is no such file, it has no [reproduce] table, or one of its settings cannot be used.
    """
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))[STUDY]
    except FileNotFoundError:
        raise InputError(
            f"There is no {path}: run this in a checkout of sfedhp, or name the folder with --experiments."
        ) from None
    except (tomllib.TOMLDecodeError, KeyError):
        raise InputError(f"{path} has no [{STUDY}] table: see experiments/table2.toml for one.") from None
    variants = {
        name: tuple(_points(path, words.split()))
        for name, words in table["variants"].items()
        if not only or name.startswith(tuple(only))
    }
    rounds = table.get("choice_rounds", 0)
    return Study(path.stem, table["table"], table["reading"], table.get("paper", True), rounds, variants)


def _points(path: Path, words: Sequence[str]) -> Iterable[Point]:
    """One for each combination of the values that stand with commas between them."""
    for point in grid(words):
        yield Point(" ".join(point.words), read_settings([str(path), *point.words]).experiment())

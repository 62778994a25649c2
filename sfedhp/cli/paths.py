"""Where runs go: the folder that was given, or a new one."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from sfedhp.core.errors import InputError


class Target(click.Path):
    """A folder or file to write to. No name is no wish to fill the folder where one stands."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.

        Raises:
            InputError: it is empty, as where a shell variable was not set.
        """
        if not str(value).strip():
            name = param.opts[0] if param is not None else "The path"
            raise InputError(f"{name} is empty: name a folder or file, or leave it out.")
        return super().convert(value, param, ctx)


def check_file(option: str, path: Path, *beside: Path) -> None:
    """Refuse a file that cannot be written, before time is spent on what it shall hold.

    Args:
        option: which names it.
        path: the file.
        beside: folders that are made with it.

    Raises:
        InputError: it is a folder, or one above it or beside it is a file or closed.
    """
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder: name a file.")
    for folder in (path.parent, *beside):
        whole = folder.absolute()
        there = next(each for each in (whole, *whole.parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            why = "not open to you" if there.is_dir() else "a file"
            raise InputError(f"{option} {path} cannot be written, for {there} is {why}: choose another.")


def new_folder(what: str, source: str) -> Path:
    """Make `runs/<what>-<source>-<time>` in the current folder, with a number behind it where it is taken.

    Raises:
        InputError: nothing can be written here.
    """
    source = Path(source).stem if source.endswith(".npz") else source
    name = f"{what}-{source}-{datetime.now():%Y%m%d-%H%M%S}"
    number, folder = 1, Path("runs", name)
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{name}-{number}")
        except OSError as error:
            raise InputError(
                f"{folder} cannot be made ({error.strerror}): choose a folder with --out."
            ) from None

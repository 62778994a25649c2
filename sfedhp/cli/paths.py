"""Paths that commands write to: a new folder for a run, and checks before the work starts."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from sfedhp.core.errors import InputError
from sfedhp.data.registry import is_file


def check_writable(option: str, path: Path, *beside: Path) -> None:
    """Refuse a file that cannot be written, before its content is computed.

    Args:
        option: the option that names it.
        path: the file.
        beside: folders that are made with it.

    Raises:
        InputError: it is a folder, or a folder above or beside it is a file or not writable.
    """
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder: name a file.")
    for folder in (path.parent, *beside):
        whole = folder.absolute()
        existing = next(each for each in (whole, *whole.parents) if each.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            why = "not writable" if existing.is_dir() else "a file"
            raise InputError(
                f"{option} {path} cannot be written because {existing} is {why}: choose another."
            )


def new_folder(what: str, source: str) -> Path:
    """Make `runs/<what>-<source>-<time>` in the current folder; a number is added if it exists.

    Raises:
        InputError: the folder cannot be created.
    """
    source = Path(source).stem if is_file(source) else source
    what = what.replace(":", ".")  # a user's own method; some programs reject a colon in a file name
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
                f"{folder} cannot be created ({error.strerror}): choose a folder with --out."
            ) from None

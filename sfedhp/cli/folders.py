"""Where a run goes that was given no folder."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sfedhp.types import InputError


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

"""Where a run goes: a folder that was not there before, or one that holds no run yet."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sfedhp.types import InputError


def check_vacant(folder: Path) -> None:
    """Refuse a folder that already holds a run, before any time is spent on data.

    Raises:
        InputError: it does, or it is not a folder.
    """
    if (folder / "config.toml").exists():
        raise InputError(
            f"{folder} already holds a run: choose another folder for --out, "
            f"or go on with `sfedhp resume {folder}`."
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose a folder for --out.")


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

"""The experiment files and records in the installed package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

# In a wheel they are beside this module (setup.py puts them there), in a clone at its root.
_INSIDE: Final = Path(__file__).parent
_CLONE: Final = Path(__file__).parents[2]
RECORDS: Final = "*.jsonl*"  # plain, or compressed as `*.jsonl.gz`


def packaged_experiments() -> Path:
    """The folder of the package's experiment files."""
    return _either(_INSIDE / "experiments", _CLONE / "experiments")


def packaged_records() -> Path:
    """The folder of the package's records."""
    return _either(_INSIDE / "records", _CLONE / "results")


def records_folder() -> Path:
    """The folder `results` in the current folder if it has records, else that of the package."""
    here = Path("results")
    return here if any(here.glob(RECORDS)) else packaged_records()


def copy_records(folder: Path) -> None:
    """Copy the package's records, to which new ones can then be added.

    Args:
        folder: is made if it is not there; a file in it is not replaced.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in packaged_records().glob(RECORDS):
        if not (folder / path.name).exists():
            shutil.copy(path, folder)


def _either(wheel: Path, clone: Path) -> Path:
    return wheel if wheel.is_dir() else clone

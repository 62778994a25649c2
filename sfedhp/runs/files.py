"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the path, force it to the disk, then rename: a reader never sees half a file.

    Args:
        path: the file.
        write: gets the path to write to.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        _force(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _force(path.parent)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def sweep_up(folder: Path) -> None:
    """Remove what a killed process left half-written below a folder."""
    for left in folder.rglob(".*.[0-9]*"):
        left.unlink(missing_ok=True)


def _force(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

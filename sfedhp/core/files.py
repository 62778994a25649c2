"""Files that are there whole or not at all, and folders that one process at a time writes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sfedhp.core.errors import InputError

if sys.platform != "win32":
    import fcntl


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the path, force it to the disk, then rename: a reader never sees half a file.

    Args:
        path: the file.
        write: gets the path to write to.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        force(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    force(path.parent)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def sweep_up(folder: Path) -> None:
    """Remove what a killed process left half-written below a folder."""
    for left in folder.rglob(".*.[0-9]*"):
        left.unlink(missing_ok=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder, made where there is none, from other processes; it is free again when this one dies.

    The lock is on the folder itself: no file of it is left to see, and none can be replaced under it.

    Raises:
        InputError: another one holds it, or it cannot be made; or this is Windows, which locks no folders.
    """
    if sys.platform == "win32":
        raise InputError("sfedhp writes runs on Linux and macOS: on Windows, use it inside WSL.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"{folder} is in use by a run that is under way: wait until it ends, or choose another folder."
        ) from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def force(path: Path) -> None:
    """See that a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

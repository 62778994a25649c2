"""Atomic writes, and a lock on a folder that one process at a time may write to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sfedhp.core.errors import InputError

if sys.platform != "win32":
    import fcntl


def write_atomically(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Write a temporary file beside the path, then rename it: a reader never sees half a file.

    Args:
        path: the file.
        write: gets the path to write to.
        durable: wait until the file and its name are on the disk, so that they also survive a power cut.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        if durable:
            fsync(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    if durable:
        fsync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files that killed processes left below a folder."""
    for left in folder.rglob(".*.[0-9]*"):
        left.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, and create it if it is missing; the lock ends with the block or with this process.

    The lock is on the folder itself: there is no lock file that could be left behind or replaced.

    Raises:
        InputError: another process has the lock, the folder cannot be created, or this is Windows, which
            cannot lock folders.
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


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

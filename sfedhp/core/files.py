"""Atomic writes, and a lock on a folder that one process at a time may write to."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sfedhp.core.errors import InputError

if sys.platform != "win32":
    import fcntl

_TEMPORARY: Final = ".sfedhp-tmp"  # ends the name of a folder for a file that is being written


def write_atomically(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Write a temporary file, then move it to the path: a reader never sees half a file.

    Args:
        path: the file.
        write: gets the path to write to.
        durable: wait until the file and its name are on the disk, so that they also survive a power cut.
    """
    # A folder of its own: some writers, as that of safetensors, have temporary files of their own.
    with temporary_folder(path) as folder:
        beside = folder / path.name
        write(beside)
        if durable:
            fsync(beside)
        os.replace(beside, path)
    if durable:
        fsync(path.parent)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A folder beside a path, for what is moved there when it is complete; removed with what is left in it.

    If this process is killed first, `remove_temporary_files` removes it.
    """
    folder = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    folder.mkdir(0o700, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def writing(path: Path, instead: str = "another file") -> Iterator[None]:
    """Turn errors of writing into a message that names the file or folder and a remedy.

    Raises:
        InputError: instead of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): choose {instead}.") from None


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def remove_temporary_files(folder: Path, *below: str, shared: bool = False) -> None:
    """Remove temporary files that killed processes of this package left, and nothing else.

    Args:
        folder: where this process writes.
        below: the names of folders in it, where it writes too.
        shared: whether other processes may write there now; what a process that runs has begun then stays.
    """
    for place in (folder, *(folder / name for name in below)):
        for left in place.glob(f".*{_TEMPORARY}"):
            if not (shared and _is_running(left.name.removesuffix(_TEMPORARY).rpartition(".")[2])):
                shutil.rmtree(left, ignore_errors=True)


def _is_running(process: str) -> bool:
    """Whether there is a process of this number, other than this one."""
    if not process.isdecimal() or int(process) == os.getpid():
        return False
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder, and create it if it is missing; the lock ends with the block or with this process.

    The lock is on the folder itself: there is no lock file that could be left behind or replaced.

    Args:
        folder: the folder.
        wait: wait for another process that has the lock, instead of refusing.

    Raises:
        InputError: another process has the lock, the folder cannot be created, or this is Windows, which
            cannot lock folders.
    """
    if sys.platform == "win32":
        raise InputError("sfedhp writes runs on Linux and macOS: on Windows, use it inside WSL.")
    with writing(folder, "another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
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

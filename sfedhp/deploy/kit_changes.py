"""Keeps a folder of kits whole: what fails is removed, and one command at a time changes it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sfedhp.core.errors import InputError
from sfedhp.core.files import locked, remove_temporary_files
from sfedhp.deploy.site import AUTHORITIES, startup_folders


@contextmanager
def all_or_nothing(folder: Path, names: Collection[str]) -> Iterator[None]:
    """Remove unfinished kits and private keys when anything, also an interruption, stops the work.

    Args:
        folder: for the kits; it is created, and must be empty.
        names: of what the work creates there. Nothing else is removed, whoever put it there meanwhile.
    """
    missing: list[Path] = []
    try:
        missing = [each for each in (folder, *folder.absolute().parents) if not each.exists()]
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise _occupied(folder)
        with locked(folder, wait=True):
            if any(folder.iterdir()):  # another command made its kits while this one waited
                raise _occupied(folder)
            try:
                yield
            except BaseException:
                for name in names:
                    shutil.rmtree(folder / name, ignore_errors=True)
                raise
    except BaseException as error:
        for each in missing:
            with contextlib.suppress(OSError):  # it is not empty
                each.rmdir()
        if isinstance(error, OSError):
            raise _unwritable(folder, error) from None
        raise


@contextmanager
def changing(kits: Path) -> Iterator[None]:
    """Change existing kits while no other command does; first remove what a killed command left.

    Args:
        kits: the folder of the kits, which exists.

    Raises:
        InputError: something cannot be written.
    """
    try:
        with locked(kits, wait=True):
            own = [place for kit in kits.glob("*/") for place in (kit, *startup_folders(kit))]
            for place in (kits, *own, *(kits / AUTHORITIES).glob("*/state/")):
                remove_temporary_files(place, shared=True)
            yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"The kits in {kits} cannot be changed ({reason}): correct that, and repeat this command."
        ) from None


def _occupied(folder: Path) -> InputError:
    message = f"{folder} is not empty: choose another folder for the kits with --out"
    if (folder / "cloud").is_dir():
        return InputError(f"{message}, or start those that it holds, with `sfedhp cloud {folder / 'cloud'}`.")
    return InputError(f"{message}.")


def _unwritable(folder: Path, error: OSError) -> InputError:
    reason = error.strerror or error
    return InputError(f"The kits cannot be written to {folder} ({reason}): choose another folder with --out.")

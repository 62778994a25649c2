"""The errors for bad input and for failed writes, and the warning for what a user should know."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


class InputError(ValueError):
    """Bad input from a user: one clear sentence that says what to do. The command ends with exit code 2."""


class UnsuitableMethodError(InputError):
    """A method does not support the problem of a run, or its loss; other methods do."""


class StorageError(OSError):
    """A run cannot write its files: the disk is full, or the folder was removed.

    The input is right, so the command ends with exit code 1.
    """


class Note(UserWarning):
    """Something a user should know about a run; the command line prints it, and the run continues."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str, shown: Callable[[str], str] = str) -> str:
    """The end of a message about an unknown name: a question with the nearest known one, if one is near.

    Names that differ only by case are equal here.

    Args:
        name: as the user gave it.
        known: the right names.
        otherwise: what to do if none is near.
        shown: how the message writes a name.
    """
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f"did you mean {shown(by_lower[near[0]])}?" if near else otherwise

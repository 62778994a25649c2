"""The errors for bad input and for failed writes, and the warning for what a user should know."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from a user: one clear sentence that says what to do. The command ends with exit code 2."""


class UnsuitableMethodError(InputError):
    """A method does not solve the problem of a run, or has no use for its loss; others do."""


class StorageError(OSError):
    """What a run has to write cannot be written: the disk is full, or the folder is gone.

    Nothing is wrong with the input: the command ends with exit code 1.
    """


class Note(UserWarning):
    """Something a user should know about a run; the command line prints it, and the run continues."""

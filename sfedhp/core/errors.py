"""The error for bad input of a user, and the warning for what a user should know."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from a user: one clear sentence that says what to do. The command ends with exit code 2."""


class Note(UserWarning):
    """Something a user should know about a run; the command line prints it, and the run continues."""

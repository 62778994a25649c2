"""The error for bad input of a user."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input from a user: one clear sentence that says what to do. The command ends with exit code 2."""

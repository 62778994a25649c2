"""The command `sfedhp` in the process of the test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from sfedhp.cli import main


def invoke(*words: object) -> Result:
    """Run the command, and fail if it ends with a traceback."""
    result = CliRunner().invoke(main, [str(word) for word in words], prog_name="sfedhp")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result

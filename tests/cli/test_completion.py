"""Shell completion: click's own, without importing every command for a list of names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sfedhp.cli import COMMANDS


@pytest.mark.parametrize(
    ("words", "place", "found"),
    [
        ("sfedhp re", "1", [name for name in COMMANDS if name.startswith("re")]),
        ("sfedhp --ver", "1", ["--version"]),
        ("sfedhp predict --mo", "2", ["--model"]),
    ],
)
def test_commands_and_options_are_completed(words: str, place: str, found: list[str]) -> None:
    code = (
        "import sys; from sfedhp.cli import main\ntry: main(prog_name='sfedhp')\n"
        "finally: print('torch' in sys.modules)"
    )
    asked = {"_SFEDHP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked, check=False
    )
    *items, torch = done.stdout.splitlines()
    assert [item.removeprefix("plain,") for item in items] == found
    if place == "1":
        assert torch == "False"

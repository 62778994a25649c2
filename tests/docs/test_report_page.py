"""The page on reports: its commands run as printed, and write what it says."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support.commands import run_command
from tests.support.pages import DOCS, blocks

PAGE = DOCS / "report.md"


def test_the_commands_run_as_printed(tmp_path: Path) -> None:
    written: list[str] = []
    for block in blocks(PAGE, "sh"):
        for line in block.lines:
            words = shlex.split(line, comments=True)
            written.append(run_command(words, tmp_path)[0].splitlines()[-1])
    assert written[0] == "Page: runs/first/report.html"
    assert written[1] == "runs/first/report.html"
    assert "both.html" in written
    for name in (
        "report.html",
        "report.csv",
        "report.tex",
        "report-charts/bytes.svg",
        "report-charts/bytes.png",
    ):
        assert (tmp_path / "runs/methods" / name).exists(), name

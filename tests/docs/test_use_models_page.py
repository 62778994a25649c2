"""The page on saved models: its commands and scripts run after those of the page on tables."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks

TABLES, PAGE = DOCS / "tables.md", DOCS / "use-models.md"


def test_the_page_works_as_printed(tmp_path: Path) -> None:
    script, *_ = blocks(TABLES, "python")
    run_script(script.lines, tmp_path)
    patients = (tmp_path / "patients.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "new.csv").write_text("\n".join(patients[:11]) + "\n", encoding="utf-8")
    run_command(shlex.split(blocks(TABLES, "sh")[1].lines[0]), tmp_path)[0]
    commands, exporting = blocks(PAGE, "sh")
    printed = [run_command(shlex.split(line), tmp_path)[0] for line in commands.lines]
    (shown,) = blocks(PAGE, "text")
    assert printed[0].splitlines()[0] == shown.lines[0]
    assert [line.split(",")[1] for line in printed[0].splitlines()[1:]].count("malignant") >= 8
    assert len((tmp_path / "predicted.csv").read_text(encoding="utf-8").splitlines()) == 11
    modules, elsewhere, metadata = blocks(PAGE, "python")
    assert "['benign', 'malignant']" in run_script(modules.lines, tmp_path)
    assert run_script(metadata.lines, tmp_path).startswith("['benign', 'malignant'] 9")
    (line,) = exporting.lines
    assert "predicted as by torch" in run_command(shlex.split(line), tmp_path)[0]
    assert run_script(elsewhere.lines, tmp_path).startswith("['benign', 'malignant'] [[")

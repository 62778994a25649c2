"""The page on images: its scripts and commands run, and they give the figures of its table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks, tables

PAGE = DOCS / "images.md"
TOLERANCE = 1.0  # percentage points: another machine rounds differently


def test_the_page_works_as_printed(tmp_path: Path) -> None:
    script, huggingface = blocks(PAGE, "python")
    run_script(script.lines, tmp_path)
    (commands,) = blocks(PAGE, "sh")
    training, predicting = (shlex.split(line) for line in commands.lines)
    result = json.loads(run_command([*training, "--json"], tmp_path)[0])
    (stated,) = (row[1:] for row in tables(PAGE) if row[0] == "`runs/digits`")
    found = [result[f"{model}_last"] for model in ("pm", "em", "gm")]
    assert found == pytest.approx([float(figure) for figure in stated], abs=TOLERANCE)
    run_command(predicting, tmp_path)
    lines = (tmp_path / "predicted.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("row,file,prediction,")
    threes = [line.split(",")[2] for line in lines[1:]]
    assert threes.count("3") > 0.8 * len(threes)
    run_script(huggingface.lines, tmp_path)

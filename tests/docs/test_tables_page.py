"""The page on tables: its script and its commands run, and they give the figures of its table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks, tables

PAGE = DOCS / "tables.md"
TOLERANCE = 1.0  # percentage points: another machine rounds differently


def test_the_commands_give_the_figures_of_the_page(tmp_path: Path) -> None:
    script, *_ = blocks(PAGE, "python")
    run_script(script.lines, tmp_path)
    _, example = blocks(PAGE, "sh")
    assert len(example.lines) == 2
    stated = {row[0].strip("`"): row[1:] for row in tables(PAGE) if row[0].startswith("`runs/")}
    for line in example.lines:
        words = shlex.split(line)
        result = json.loads(run_command([*words, "--json"], tmp_path)[0])
        found = [result[f"{model}_last"] for model in ("pm", "em", "gm")]
        figures = [float(figure) for figure in stated.pop(words[words.index("--out") + 1])]
        assert found == pytest.approx(figures, abs=TOLERANCE)
    assert not stated

"""The page on tables: its script and its commands run, and they give the figures of its table."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import DOCS, blocks, tables

PAGE = DOCS / "tables.md"
TOLERANCE = 1.0  # percentage points: another machine rounds differently


def test_the_commands_give_the_figures_of_the_page(tmp_path: Path) -> None:
    script, *_ = blocks(PAGE, "python")
    subprocess.run([sys.executable, "-c", "\n".join(script.lines)], cwd=tmp_path, check=True, timeout=600)
    _, example = blocks(PAGE, "sh")
    assert len(example.lines) == 2
    stated = {row[0].strip("`"): row[1:] for row in tables(PAGE) if row[0].startswith("`runs/")}
    for line in example.lines:
        words = shlex.split(line)
        done = subprocess.run(
            [sys.executable, "-m", *words, "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        result = json.loads(done.stdout)
        found = [result[f"{model}_last"] for model in ("pm", "em", "gm")]
        figures = [float(figure) for figure in stated.pop(words[words.index("--out") + 1])]
        assert found == pytest.approx(figures, abs=TOLERANCE)
    assert not stated

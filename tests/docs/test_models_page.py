"""The page on models: its table lists the presets, and its commands give the figures that it states."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from sfedhp.nn.presets import MODELS
from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks, tables

PAGE = DOCS / "models.md"
TOLERANCE = 2.0  # percentage points: another machine rounds differently


def test_the_table_lists_the_models() -> None:
    names = [name.strip(" `") for row in tables(PAGE) for name in row[0].split(",") if len(row) == 3]
    assert sorted(set(names) & set(MODELS)) == sorted(MODELS)


def test_the_commands_give_the_figures_of_the_page(tmp_path: Path) -> None:
    script = []
    for block in blocks(PAGE, "python"):
        if block.lines[0].startswith("# file: "):
            (tmp_path / block.lines[0].removeprefix("# file: ")).write_text("\n".join(block.lines))
        else:
            script += block.lines
    run_script(script, tmp_path)
    stated = {row[0].strip("`"): float(row[1]) for row in tables(PAGE) if row[0].startswith("`runs/")}
    for block in blocks(PAGE, "sh"):
        words = shlex.split(block.lines[0])
        if "--out" not in words:
            continue
        out, err = run_command([*words, "--json"], tmp_path, strict=True)
        assert "Warning" not in err
        assert json.loads(out)["gm_last"] == pytest.approx(
            stated.pop(words[words.index("--out") + 1]), abs=TOLERANCE
        )
    assert not stated

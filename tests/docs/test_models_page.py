"""The page on models: its table lists the presets, and its commands give the figures that it states."""

from __future__ import annotations

import json
import re
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


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_commands_give_the_figures_of_the_page(tmp_path: Path, whole: bool) -> None:
    """The whole runs take long; one round shows that the commands work."""
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
        figure = stated.pop(words[words.index("--out") + 1])
        if not whole:
            words = [re.sub(r"^rounds=\d+$", "rounds=1", word) for word in words]
        out, err = run_command([*words, "--json"], tmp_path, strict=True)
        assert "Warning" not in err
        found = json.loads(out)
        if whole:
            assert found["gm_last"] == pytest.approx(figure, abs=TOLERANCE)
        else:
            assert found["rounds"] == 1
    assert not stated

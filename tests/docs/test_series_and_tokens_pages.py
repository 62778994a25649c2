"""The pages on time series and tokens: scripts and commands run on real data, and give the figures stated."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks, tables


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("page", "keys", "tolerance"),
    [
        ("time-series.md", ["gm_rmse_last", "gm_mae_last", "gm_r2_last"], {"rel": 0.03}),
        ("tokens.md", ["gm_last"], {"abs": 5.0}),  # another machine rounds differently
    ],
)
def test_the_commands_give_the_figures_of_the_page(
    page: str, keys: list[str], tolerance: dict[str, Any], whole: bool, tmp_path: Path
) -> None:
    """The whole runs take long; one round shows that the commands work."""
    script = []
    for block in blocks(DOCS / page, "python"):
        if block.lines[0].startswith("# file: "):
            (tmp_path / block.lines[0].removeprefix("# file: ")).write_text("\n".join(block.lines))
        else:
            script += block.lines
    run_script(script, tmp_path)
    stated = {row[0].strip("`"): row[1:] for row in tables(DOCS / page) if row[0].startswith("`runs/")}
    (commands,) = (block.lines for block in blocks(DOCS / page, "sh"))
    train, predict = (shlex.split(line) for line in commands)
    figures = [float(figure) for figure in stated[train[train.index("--out") + 1]]]
    if not whole:
        train = [re.sub(r"^rounds=\d+$", "rounds=1", word) for word in train]
    out, err = run_command([*train, "--json"], tmp_path, strict=True)
    assert "Warning" not in err
    result = json.loads(out)
    if whole:
        assert [result[key] for key in keys] == pytest.approx(figures, **tolerance)
    else:
        assert result["rounds"] == 1
    run_command(predict, tmp_path, strict=True)
    rows = len((tmp_path / "predicted.csv").read_text().splitlines()) - 1
    assert rows == (1177 if page == "tokens.md" else 3104)

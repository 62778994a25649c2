"""The page on problems: its script and its commands run, and they give the figures of its table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from sfedhp.data import DataOptions, federate
from sfedhp.nn.problems import PROBLEMS
from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks, tables

PAGE = DOCS / "problems.md"
TOLERANCE = 0.01  # of a figure: another machine rounds differently


def test_the_commands_give_the_figures_of_the_page(tmp_path: Path) -> None:
    script, own = blocks(PAGE, "python")
    run_script(script.lines, tmp_path)
    (example,) = blocks(PAGE, "sh")
    stated = {row[0].strip("`"): row[1:] for row in tables(PAGE) if row[0].startswith("`runs/")}
    for line in example.lines:
        words = shlex.split(line)
        out, err = run_command([*words, "--json"], tmp_path)
        assert "problem = regression" in err
        result = json.loads(out)
        found = [result[f"gm_{metric}_last"] for metric in ("rmse", "mae", "r2")]
        figures = [float(figure) for figure in stated.pop(words[words.index("--out") + 1])]
        assert found == pytest.approx(figures, rel=TOLERANCE)
    assert not stated
    options = DataOptions(str(tmp_path / "diabetes.csv"), target="target", validation_per_label=1)
    federation, _ = federate(options, edges=2, clients_per_edge=3, seed=0)  # the rows of the runs
    train, rest = np.concatenate(federation.train), np.concatenate(federation.test)
    linear = LinearRegression().fit(federation.inputs[train], federation.labels[train])
    error = np.sqrt(((linear.predict(federation.inputs[rest]) - federation.labels[rest]) ** 2).mean())
    assert f"has an RMSE of {error:.2f}." in PAGE.read_text(encoding="utf-8")
    scope: dict[str, object] = {}
    exec("\n".join(own.lines), scope)
    pinball = scope["pinball"]
    assert callable(pinball)
    assert pinball(torch.zeros(3, 1), torch.ones(3, 1)).tolist() == pytest.approx([0.9] * 3)


def test_the_page_names_every_problem_with_its_losses_and_metrics() -> None:
    rows = {row[0].strip("`"): " ".join(row) for row in tables(PAGE) if row[0].strip("`") in PROBLEMS}
    assert list(rows) == list(PROBLEMS)
    for name, problem in PROBLEMS.items():
        for word in (problem.losses[0], *problem.reported, *problem.extra):
            assert word in rows[name], word

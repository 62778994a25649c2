"""Run folders made by version 0.1.0, before its modules were moved and renamed, resume.

`old_folders` holds three finished runs of two rounds and their data. They were made with

    sfedhp run data.source=rows.npz edges=2 clients_per_edge=2 model.name=mlr rounds=2 batch_size=4

and the method's settings, which are in each `config.toml`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sfedhp
from tests.support.json_lines import json_lines, without_seconds

OLD = Path(__file__).parent / "old_folders"
METHODS = ("sfedhp", "fedavg", "heurfedamp")


@pytest.fixture(params=METHODS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old folder, with two rounds more to run and its data at another place."""
    shutil.copy(OLD / "rows.npz", tmp_path)
    copy = shutil.copytree(OLD / request.param, tmp_path / request.param)
    lines = (copy / "config.toml").read_text(encoding="utf-8").splitlines()
    changed = {"rounds": "rounds = 4", "source": f'source = "{tmp_path / "rows.npz"}"'}
    lines = [changed.get(line.partition(" = ")[0], line) for line in lines]
    (copy / "config.toml").write_text("\n".join(lines), encoding="utf-8")
    return copy


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return json_lines(folder / "history.jsonl")


def test_an_old_folder_resumes_like_an_unbroken_run(folder: Path, tmp_path: Path) -> None:
    old = rows_of(folder)
    resumed = sfedhp.resume(folder)
    unbroken = sfedhp.run(resumed.experiment, out=tmp_path / "unbroken")

    assert resumed.finished
    rows = rows_of(folder)
    assert rows[:2] == old  # with their seconds: the first rounds were not run again
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    for row, expected in zip(without_seconds(rows), without_seconds(unbroken.history), strict=True):
        assert row == pytest.approx(expected, rel=1e-5)

    names = sorted(path.name for path in (OLD / folder.name / "models").iterdir())
    for models in (folder / "models", tmp_path / "unbroken" / "models"):
        assert sorted(path.name for path in models.iterdir()) == names
    for name in names:
        # Another processor rounds differently than the one that computed the first two rounds.
        torch.testing.assert_close(
            load_file(folder / "models" / name),
            load_file(tmp_path / "unbroken" / "models" / name),
            rtol=1e-5,
            atol=1e-6,
        )


def test_a_newcomer_joins_an_old_folder() -> None:
    with np.load(OLD / "rows.npz") as arrays:
        own = {name: arrays[name][arrays["client"] == 0] for name in ("inputs", "labels", "test")}
    found = sfedhp.personalize(OLD / "sfedhp", own)
    assert found.loss < min(found.losses.values())

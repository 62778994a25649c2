"""The files of a run's scores, and folders that hold other files of these names."""

from __future__ import annotations

from pathlib import Path

import pytest

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.runs.score_files import read_scores, write_alone, write_scores
from tests.support.short_runs import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores") / "run"
    sfedhp.run(SMALL, out=folder)
    write_alone(folder, {0: 90.0, 1: 80.0})
    return folder


def test_a_run_that_writes_its_scores_again_keeps_what_training_alone_had(run: Path) -> None:
    scores = read_scores(run)
    assert scores is not None
    write_scores(run, scores)
    again = read_scores(run)
    assert again is not None
    assert [row["alone"] for row in again.clients][:2] == [90.0, 80.0]


@pytest.mark.parametrize("damage", [b"\xff", b"14.0"])
def test_what_is_damaged_gets_no_new_checksum(run: Path, damage: bytes) -> None:
    scores, table = read_scores(run), run / "clients.csv"
    assert scores is not None
    for row in scores.clients:
        row.pop("alone")
    content = table.read_bytes()
    table.write_bytes(content.replace(b"90.0", damage))
    write_scores(run, scores)
    again = read_scores(run)
    assert again is not None
    assert all(row.get("alone") is None for row in again.clients)
    table.write_bytes(content)
    write_scores(run, scores)
    write_alone(run, {0: 90.0, 1: 80.0})


@pytest.mark.parametrize(
    "name",
    [
        "history.jsonl",
        "clients.csv",
        "scores.json",
        "checkpoint/round-best.safetensors",
        "models/mine.safetensors",
    ],
)
def test_a_folder_with_a_file_that_a_run_would_replace_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "own" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(InputError, match=rf"own has no config.toml, but a file .*, {name}: choose another"):
        sfedhp.run(SMALL, out=tmp_path / "own")
    assert path.read_text() == "mine"
    assert [each for each in (tmp_path / "own").rglob("*") if each.is_file()] == [path]

"""What is kept of clients that joined after training."""

from __future__ import annotations

import warnings

import pytest

from sfedhp.core.errors import Note
from sfedhp.runs.newcomer_records import FOLDER, read_newcomers, write_newcomer

FOUND = {"start": "global", "metric": "accuracy", "before": 50.0, "after": 75.0, "kept": "own"}
FOUND |= {"rows": 12, "test_rows": 4}


def test_a_damaged_record_is_named_and_left_out(tmp_path):
    (tmp_path / FOLDER).mkdir()
    for name in ("one", "two"):
        write_newcomer(tmp_path / FOLDER / f"{name}.safetensors", FOUND)
    assert [(each.name, each.after) for each in read_newcomers(tmp_path)] == [("one", 75.0), ("two", 75.0)]
    path = tmp_path / FOLDER / "one.json"
    path.write_text(path.read_text().replace("75.0", "76.0"))
    with pytest.warns(Note, match=r"one.json is damaged: its content .* It is left out"):
        assert [each.name for each in read_newcomers(tmp_path)] == ["two"]


@pytest.mark.parametrize("content", ["[]", "3", "{}", "no JSON", '{"metric": []}'])
def test_what_is_no_record_is_left_out(tmp_path, content):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "own.json").write_text(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_newcomers(tmp_path) == []

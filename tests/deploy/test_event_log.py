"""The log and the status of a role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfedhp.deploy.event_log import EventLog, read_status


def round_of(folder: Path) -> Any:
    status = read_status(folder)
    assert status is not None
    return status["round"]


def test_the_log_outlives_a_full_disk(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "run", "edge-0")
    log.write_status(now=True, round=1)
    log.write_status(round=2)
    assert round_of(tmp_path / "run") == 1, "not more often than twice a second"
    assert read_status(tmp_path) is None
    monkeypatch.setattr(Path, "open", _full)
    monkeypatch.setattr("sfedhp.deploy.event_log.write_text", _full)
    log.write("something")
    log.write_status(now=True, round=3)
    monkeypatch.undo()
    assert round_of(tmp_path / "run") == 1


GOOD = {"name": "cloud", "time": 1.5, "row": {"round": 1, "gm": None, "bytes_cloud_edge": 9}, "members": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 5},
        {"time": "2026-11-20"},
        {"round": "one"},
        {"rounds": []},
        {"row": 5},
        {"row": {"gm": "high"}},
        {"row": {"bytes_cloud_edge": "many"}},
        {"row": {"missing": [1]}},
        {"members": [1]},
        {"members": {"a": {}}},
        {"members": {"a": 5}},
        {"members": {"a": {"up": True, "members": [1]}}},
        {"states": {"a": {"state": "idle"}}},
        {"states": {"a": {"state": "idle", "silent": "long"}}},
        {"sent": {"cloud_edge": "many"}},
        {"finished": "yes"},
        {"trouble": 5},
        {"classes": {"pm": 1}},
    ],
    ids=str,
)
def test_a_status_of_another_shape_cannot_be_read(tmp_path, wrong):
    file = tmp_path / "status.json"
    file.write_text(json.dumps(GOOD))
    assert read_status(tmp_path) == GOOD
    file.write_text(json.dumps(GOOD | wrong))
    assert read_status(tmp_path) is None


def _full(*_, **__):
    raise OSError(28, "No space left on device")

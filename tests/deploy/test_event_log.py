"""The log and the status of a role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def _full(*_, **__):
    raise OSError(28, "No space left on device")

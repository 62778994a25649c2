"""Thirty of the kills of `python -m tests.support.kills`."""

from tests.support.kills import suite


def test_thirty_kills_change_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = suite(30, 1, tmp_path, say=lambda line: None)
    assert done.total() >= 30
    assert len(done) >= 6

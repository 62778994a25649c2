"""No network at run time: only `sfedhp data get` opens a connection."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.support.invoking import invoke

_BLOCKED = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"}
attempts: list[str] = []
watching = False


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if watching and event in _BLOCKED:
        attempts.append(f"{event} {arguments[1:]}")
        raise OSError("the network is blocked")


sys.addaudithook(_watch)  # also sees connections of libraries that were imported before


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The connections that were tried; each fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFEDHP_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys.modules[__name__], "watching", True)
    attempts.clear()
    return attempts


TINY = ["rounds=1", "model.name=mlr", "algorithm.edge_rounds=1", "data.train_per_label=6"]


@pytest.mark.parametrize(
    "words",
    [
        ["run", *TINY, "--out", "one"],
        ["compare", *TINY, "--only", "sfedhp,fedavg", "--out", "all"],
        ["sweep", *TINY, "algorithm.edge_rate=0.01,0.05", "--out", "grid"],
        ["check", *TINY],
        ["data", "list"],
        ["run", "--help-all"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_connects_to_nothing(blocked: list[str], words: list[str]) -> None:
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert not blocked


def test_resume_and_show_connect_to_nothing(blocked: list[str]) -> None:
    for words in (["run", *TINY, "--out", "one"], ["resume", "one"], ["show", "one"]):
        assert invoke(*words).exit_code == 0
    assert not blocked


def test_data_get_is_the_one_that_does(blocked: list[str]) -> None:
    result = invoke("data", "get", "mnist")
    assert result.exit_code == 2
    assert blocked


def test_the_watch_works(blocked: list[str]) -> None:
    with socket.socket() as one, pytest.raises(OSError, match="blocked"):
        one.connect(("127.0.0.1", 9))
    assert len(blocked) == 1

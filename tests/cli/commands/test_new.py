"""A starter project runs, compares and passes its own test as it is generated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def project(sfedhp, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert sfedhp("new", "work/demo").stdout.splitlines()[1] == "  cd work/demo && sfedhp run experiment.toml"
    monkeypatch.chdir(here / "work" / "demo")
    return here / "work" / "demo"


def test_it_runs_and_its_method_is_compared(sfedhp, project: Path) -> None:
    result = sfedhp("run", "experiment.toml", "rounds=2", "--out", "run", "--no-report")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("my_method:Mine on ")
    readme = (project / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("# demo\n")
    (compare,) = [line.split() for line in readme.splitlines() if line.startswith("    sfedhp compare")]
    result = sfedhp(*compare[1:], "rounds=1", "--no-report")
    assert result.exit_code == 0, result.output
    for method in ("my_method:Mine", "sfedhp", "fedavg", "local"):
        assert f"\n{method} " in result.stdout
    for path in project.iterdir():
        assert path.name in (*readme.split("`"), "README.md", "run", "runs", "__pycache__")


def test_it_passes_its_own_test(project: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_nothing_is_overwritten(sfedhp, here: Path) -> None:
    (here / "mine").mkdir()
    result = sfedhp("new", "mine")
    assert result.exit_code == 2
    assert result.stderr == "error: mine exists already: choose another name.\n"
    assert not list((here / "mine").iterdir())

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tests.support.commands import CommandProcess
from tests.support.invoking import invoke


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's working directory, with a small file of data; nothing of the machine's own data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFEDHP_DATA", str(tmp_path / "datasets"))
    for name in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    inputs = random.normal(size=(60, 4)) + 2 * np.eye(4)[labels]
    np.savez("tiny.npz", inputs=inputs, labels=labels)
    return tmp_path


@pytest.fixture
def tiny(here: Path) -> list[str]:
    """Words of a run that takes milliseconds."""
    return [
        "data.source=tiny.npz",
        "edges=2",
        "clients_per_edge=2",
        "model.name=mlr",
        "rounds=3",
        "algorithm.edge_rounds=2",
    ]


@pytest.fixture
def sfedhp(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    return invoke


@pytest.fixture
def process(here: Path) -> Iterator[Callable[..., CommandProcess]]:
    """The command in a process of its own, in the same folder."""
    children: list[CommandProcess] = []

    def start(*words: str) -> CommandProcess:
        children.append(CommandProcess(*words))
        return children[-1]

    yield start
    for child in children:
        child.close()

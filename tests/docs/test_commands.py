"""Every command that a page prints is run, page by page, from top to bottom, in a folder of its own.

Runs are made small (`SMALL`); what a page claims of figures is tested where the page is. Roles of a
deployment become FLARE's processes, which other tests start.
"""

from __future__ import annotations

import runpy
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sfedhp.cli import main
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.loopback import LoopbackServer
from tests.support.pages import DOCS, Block, blocks
from tests.support.paths import ROOT

TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
LONG = [ROOT / "README.md"]
LONG += [DOCS / f"{name}.md" for name in ("quickstart", "faq", "links", "robust")]
SMALL = ["rounds=1", "model.name=mlr", "algorithm.edge_rounds=1", "algorithm.local_steps=1"]
TAKE_KEYS = ("run", "compare", "sweep", "check")
# What is not run here, and where it is.
ELSEWHERE = {
    "make": "tests/docs/test_project.py asks make what it would do",
    "pip": "tests/docs/test_docs.py checks that the extra exists",
    ".": "activates the environment",
    "sfedhp data get": "tests/data/test_download.py downloads from a local server",
    "sfedhp data verify": "the same",
    "sfedhp run data.source=mnist": "needs MNIST; tests/data/test_registry.py has its stand-in",
    "sfedhp data show data.source=mnist": "the same",
}


class NotStarted:
    """A federation on this machine of which no process is started."""

    def __init__(self, kits: Path):
        self.kits = kits

    def __enter__(self) -> NotStarted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        """Nothing."""

    def poll(self) -> bool:
        return False

    def status(self) -> None:
        return None

    def rows(self) -> list[object]:
        return []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder but for what a reader brings: an .npz and a .csv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(LoopbackServer, "run", lambda server: server._server.server_close())
    monkeypatch.setattr("sfedhp.cli.commands.deploy.LocalFederation", NotStarted)
    monkeypatch.setattr("sfedhp.cli.roles.os.execve", lambda *words: None)
    draw = np.random.default_rng(0)
    labels = np.arange(240) % 2
    inputs = draw.normal(size=(240, 6)).astype(np.float32) + labels[:, None]
    np.savez("my.npz", inputs=inputs, labels=labels)
    names = ["no", "yes"]
    rows = [f"{row[0]:.3f},{row[1]:.3f},{names[label]}" for row, label in zip(inputs, labels, strict=True)]
    Path("my.csv").write_text("\n".join(["a,b,diagnosis", *rows]) + "\n", encoding="utf-8")
    before = signal.getsignal(signal.SIGTERM)  # `watch` handles it
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def commands(page: Path) -> Iterator[Block]:
    """The blocks of a page that a reader follows, in their order."""
    found = blocks(page, "sh", "python", "toml", "ini")
    return iter(sorted(found, key=lambda block: block.first))


def run(words: list[str]) -> Result:
    """Run a command as it is printed, but small."""
    command, *others = words
    given = " ".join(others)  # a sweep refuses a key that is given twice
    small = [word for word in SMALL if command != "sweep" or word.partition("=")[0] not in given]
    return CliRunner().invoke(main, [*words, *(small if command in TAKE_KEYS else [])], prog_name="sfedhp")


@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(page, id=page.stem) for page in TUTORIALS),
        *(pytest.param(page, id=page.stem, marks=pytest.mark.slow) for page in LONG),
    ],
)
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    for block in commands(page):
        first = block.lines[0] if block.lines else ""
        if first.startswith("# file: "):
            file = folder / first.removeprefix("# file: ")
            file.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
            runpy.run_path(str(file))
        elif first.startswith("# ") and block.language in ("toml", "ini"):
            name = first.removeprefix("# ").split()[0]
            (folder / name).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        elif block.language == "sh":
            for line in block.lines:
                follow(line, folder)


def follow(line: str, folder: Path) -> None:
    """Run one line of a page."""
    words = shlex.split(line, comments=True)
    if not words or words[0] in ELSEWHERE or any(line.startswith(known) for known in ELSEWHERE):
        return
    assert words[0] == "sfedhp", line
    if words[1] == "status":  # as if the role had begun
        EventLog(folder / words[2] / "run", "cloud").write_status(True, round=1, rounds=2, row={}, members={})
    result = run(words[1:])
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"

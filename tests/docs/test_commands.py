"""Every command that a page prints is run, page by page, from top to bottom, in a folder of its own.

Runs are made small (`SMALL`); what a page claims of figures is tested where the page is. Roles of a
deployment become FLARE's processes, which other tests start.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.loopback import LoopbackServer
from tests.support.invoking import invoke
from tests.support.pages import DOCS, PAGES, Block, blocks
from tests.support.paths import ROOT

DATA = os.environ.get("SFEDHP_DATA")
# The first hour has the commands of other pages, and each of them costs seconds.
TUTORIALS = sorted({*(DOCS / "tutorials").glob("*.md")} - {DOCS / "tutorials" / "first-hour.md"})
# Pages whose own tests run their commands, and compare the figures that they state.
OWN_TESTS = {
    "images": "test_images_page.py",
    "local-training": "test_local_training_page.py",
    "problems": "test_problems_page.py",
    "report": "test_report_page.py",
    "tables": "test_tables_page.py",
    "time-series": "test_series_and_tokens_pages.py",
    "tokens": "test_series_and_tokens_pages.py",
    "use-models": "test_use_models_page.py",
    "watch": "test_watch_page.py",
}
TESTED_ELSEWHERE = {DOCS / f"{name}.md": ROOT / "tests/docs" / test for name, test in OWN_TESTS.items()}
LONG = [page for page in PAGES if blocks(page, "sh") and page not in (*TUTORIALS, *TESTED_ELSEWHERE)]
SMALL = ["rounds=1", "model.name=mlr", "algorithm.edge_rounds=1", "algorithm.local_steps=1"]
TAKE_KEYS = ("run", "compare", "sweep", "check")
SETS = ("mnist", "fmnist", "cifar10")
FEW_IMAGES = ["data.train_per_label=40", "data.test_per_label=20"]
# What is not run here: how the line begins, the file that tests it, and why it is there.
ELSEWHERE = {
    "make": ("docs/test_project.py", "asks make what it would do"),
    "pip": ("docs/test_docs.py", "checks that the extra exists"),
    ".": ("docs/test_commands.py", "activates the environment of the one who reads"),
    "head": ("docs/test_commands.py", "prints lines of a file"),
    "sfedhp data get": ("data/test_download.py", "downloads from a local server"),
    "sfedhp data verify": ("data/test_download.py", "the same"),
    "sfedhp bench": ("cli/commands/test_bench.py", "measures for minutes; other code bases have stand-ins"),
    "sfedhp reproduce": ("cli/commands/test_reproduce.py", "works on the records of a clone, or on a GPU"),
    "sfedhp run engine.kind=ray engine.address=auto": ("engine/ray/test_actors.py", "needs a cluster"),
    "sfedhp predict --model trial/cloud/run/models/global.safetensors": (
        "deploy/roles/test_tables.py",
        "the models of a deployment",
    ),
}


WRITES_DATA = "python tools/scikit_sets.py --write sets"  # for the commands after it
# Scripts take minutes or a GPU: tests call what they are made of, or run them here with less to do.
SCRIPTS = {
    "tools/compare_bits.py": ["record", str(ROOT), "hashes.json", "--only", "fedavg,sfedhp", "--no-deploy"],
    "benchmarks/deployment.py": [],
    "benchmarks/gibbs.py": ["--seeds", "2"],
    "benchmarks/stack_width.py": ["--methods", "fedavg", "--models", "mlr", "--rounds", "1"],
    "benchmarks/unequal_clients.py": [],
}
NEED_A_GPU = ("benchmarks/stack.py",)


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
    np.savez("newcomer.npz", inputs=inputs[:40], labels=labels[:40])
    np.savez("patients.npz", inputs=draw.normal(size=(60, 784)).astype(np.float32), labels=np.arange(60) % 10)
    Path("experiment.toml").write_text("edges = 2\nclients_per_edge = 2\n", encoding="utf-8")
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
    small = [*SMALL, *(FEW_IMAGES if any(f"data.source={name}" in words for name in SETS) else [])]
    for word in small if words[0] in TAKE_KEYS else ():
        key = word.partition("=")[0]
        if any("," in each and key in each for each in words):
            continue  # the values of a sweep
        words = [*(each for each in words if not each.startswith(f"{key}=")), word]
    return invoke(*words)


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


def test_pages_that_are_not_run_here_have_a_test_of_their_own() -> None:
    for page, test in TESTED_ELSEWHERE.items():
        assert page.name in test.read_text(encoding="utf-8"), page


def lines() -> list[str]:
    return [line for page in PAGES for block in blocks(page, "sh") for line in block.lines]


def test_what_is_not_run_here_has_a_test() -> None:
    for words, (test, _) in ELSEWHERE.items():
        assert any(line.split()[: len(words.split())] == words.split() for line in lines()), words
        assert (ROOT / "tests" / test).exists(), test
    named = {line.split()[1] for line in lines() if line.startswith("python ")}
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for script in named - SCRIPTS.keys() - set(NEED_A_GPU):
        assert re.search(rf"\b{Path(script).stem}\b", tests), script


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs(script: str, tmp_path: Path) -> None:
    run_script(script, SCRIPTS[script], tmp_path)
    if script == "tools/compare_bits.py":
        run_script(script, ["check", *SCRIPTS[script][1:]], tmp_path)


def run_script(script: str, words: list[str], folder: Path) -> None:
    """Run a script of the repository in a folder."""
    command = [sys.executable, str(ROOT / script), *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr


def follow(line: str, folder: Path) -> None:
    """Run one line of a page."""
    words = shlex.split(line, comments=True)
    if line == WRITES_DATA:
        run_script(words[1], words[2:], folder)
        return
    if not words or any(words[: len(known.split())] == known.split() for known in ("python", *ELSEWHERE)):
        return
    if DATA is None and any(f"data.source={name}" in words for name in SETS):
        return
    assert words[0] == "sfedhp", line
    if words[1] == "status":  # as if the role had begun
        EventLog(folder / words[2] / "run", "cloud").write_status(True, round=1, rounds=2, row={}, members={})
    result = run(words[1:])
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"

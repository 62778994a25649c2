"""The page on tables: its script and its commands run, and they give the figures of its table."""

from __future__ import annotations

import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks, tables
from tests.support.paths import ROOT

PAGE = DOCS / "tables.md"
TOLERANCE = 1.0  # percentage points: another machine rounds differently


def test_the_commands_give_the_figures_of_the_page(tmp_path: Path) -> None:
    script, *_ = blocks(PAGE, "python")
    run_script(script.lines, tmp_path)
    _, example, *_ = blocks(PAGE, "sh")
    assert len(example.lines) == 2
    stated = {row[0].strip("`"): row[1:] for row in tables(PAGE) if row[0].startswith("`runs/")}
    for line in example.lines:
        words = shlex.split(line)
        result = json.loads(run_command([*words, "--json"], tmp_path)[0])
        found = [result[f"{model}_last"] for model in ("pm", "em", "gm")]
        figures = [float(figure) for figure in stated.pop(words[words.index("--out") + 1])]
        assert found == pytest.approx(figures, abs=TOLERANCE)
    assert not stated


def test_the_sets_are_written_raw_and_a_command_of_the_page_compares_on_one(tmp_path: Path) -> None:
    run_tool(tmp_path, "--write", "sets")
    headers = {path.stem: path.read_text().splitlines()[0] for path in (tmp_path / "sets").iterdir()}
    assert headers.keys() == {row[0] for row in set_rows()}
    assert all(header.endswith(",target") for header in headers.values())
    commands = {set_of(line): line for line in commands_of("compare")}
    assert commands.keys() == headers.keys()
    words = shlex.split(commands["wine"].replace("rounds=15", "rounds=2"))
    compared = json.loads(run_command([*words, "--json", "--no-report"], tmp_path)[0])
    assert {run["algorithm"] for run in compared} == {"sfedhp", "local", "pooled"}


def test_pooled_rows_with_their_own_settings_have_the_figure_of_the_page(tmp_path: Path) -> None:
    """On `wine`, which is small; the commands of the other sets differ in their settings alone."""
    run_tool(tmp_path, "--write", "sets")
    commands = {set_of(line): line for line in commands_of("sweep")}
    rows = {row[0]: row for row in set_rows()}
    assert commands.keys() == rows.keys()
    runs = json.loads(run_command([*shlex.split(commands["wine"]), "--json", "--no-report"], tmp_path)[0])
    stated = float(rows["wine"][5].split(" ")[0])
    # Rounds are equally good on few validation rows: the last is among them.
    assert statistics.mean(run["gm_last"] for run in runs) == pytest.approx(stated, abs=TOLERANCE)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    first = re.search(r"`pooled` has ([\d.]+) on `wine`", text)
    assert first is not None
    validated = statistics.mean(run["gm_validated"] for run in runs)
    assert validated == pytest.approx(float(first[1]), abs=TOLERANCE)


@pytest.mark.slow
def test_the_tool_gives_a_row_of_the_page(tmp_path: Path) -> None:
    (stated,) = (row for row in set_rows() if row[0] == "wine")
    (found,) = (
        line for line in run_tool(tmp_path, "--only", "wine").splitlines() if line.startswith("| wine")
    )
    cells = [cell.strip() for cell in found.strip("|").split("|")]
    assert cells[:3] == stated[:3]
    means = [[float(cell.split(" ")[0]) for cell in row[3:]] for row in (cells, stated)]
    assert means[0] == pytest.approx(means[1], abs=2 * TOLERANCE)


def set_rows() -> list[list[str]]:
    """The rows of the table of five sets."""
    return [row for row in tables(PAGE) if len(row) == 7 and row[0] not in ("set", "---")]


def commands_of(name: str) -> list[str]:
    """The lines of the page that run this command."""
    return [
        line for block in blocks(PAGE, "sh") for line in block.lines if line.startswith(f"sfedhp {name} ")
    ]


def set_of(command: str) -> str:
    """The set that a command reads."""
    return command.split("data.source=sets/")[1].split(".csv")[0]


def run_tool(folder: Path, *words: str) -> str:
    """What tools/scikit_sets.py prints."""
    command = [sys.executable, str(ROOT / "tools" / "scikit_sets.py"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout

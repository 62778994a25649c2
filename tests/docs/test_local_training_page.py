"""The pages on local training and on what federating gains: their commands run and give their figures."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sfedhp.cli import main
from tests.support.pages import DOCS, blocks

TRAINING, HELP = DOCS / "local-training.md", DOCS / "does-it-help.md"
SMALL = ["rounds=2", "edges=2", "clients_per_edge=2", "model.name=mlr", "data.train_per_label=10"]
TOLERANCE = 1.0  # percentage points: another machine rounds differently


def commands(page: Path) -> list[list[str]]:
    """The commands of a page, without the name of the program."""
    return [shlex.split(line)[1:] for block in blocks(page, "sh") for line in block.lines]


def summaries(words: list[str]) -> dict[str, dict[str, Any]]:
    """What `compare` prints, by method."""
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 0, result.stderr
    return {summary["algorithm"]: summary for summary in json.loads(result.stdout)}


def test_the_commands_on_local_training_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(TRAINING, "toml"):
        (tmp_path / block.lines[0].removeprefix("# ")).write_text("\n".join(block.lines), encoding="utf-8")
    found = commands(TRAINING)
    assert len(found) > 5
    for number, words in enumerate(found):
        result = CliRunner().invoke(main, [*words, *SMALL, "--out", f"run-{number}", "--json"])
        assert result.exit_code == 0, (words, result.stderr)


@pytest.mark.slow
def test_training_alone_and_pooled_rows_have_the_figures_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ["compare"] in commands(HELP)
    found = summaries(["compare", "--only", "local,pooled"])
    text = " ".join(blocks(HELP, "text")[0].lines)
    stated = re.match(r"Training alone has (\S+) %, one model of all rows in one place (\S+) %", text)
    assert stated is not None
    figures = [found["local"]["pm_last"], found["pooled"]["gm_last"]]
    assert figures == pytest.approx([float(figure) for figure in stated.groups()], abs=TOLERANCE)


@pytest.mark.slow
def test_rows_dealt_out_at_random_give_the_figures_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = summaries(next(words for words in commands(HELP) if "data.partition=iid" in words))
    text = " ".join(HELP.read_text(encoding="utf-8").split())
    stated = re.search(
        r"FedAvg \((\S+) %, seed 0\) is (\S+) points above training alone \((\S+) %\), and pooled rows have "
        r"(\S+) %\. sFedHP's personal models with the default settings are still (\S+) points below",
        text,
    )
    assert stated is not None
    figures = [
        found["fedavg"]["gm_last"],
        found["fedavg"]["benefit"]["gm"]["over_alone"],
        found["local"]["pm_last"],
        found["pooled"]["gm_last"],
        -found["sfedhp"]["benefit"]["pm"]["over_alone"],
    ]
    assert figures == pytest.approx([float(figure) for figure in stated.groups()], abs=TOLERANCE)

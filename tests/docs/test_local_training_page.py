"""The pages on local training and on what federating gains: their commands run and give their figures."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.support.invoking import invoke
from tests.support.pages import DOCS, blocks, tables
from tests.support.tools import load_tool

TRAINING, HELP = DOCS / "local-training.md", DOCS / "does-it-help.md"
SMALL = ["rounds=2", "edges=2", "clients_per_edge=2", "model.name=mlr", "data.train_per_label=10"]
TOLERANCE = 1.0  # percentage points: another machine rounds differently


def commands(page: Path) -> list[list[str]]:
    """The commands of a page, without the name of the program."""
    return [shlex.split(line)[1:] for block in blocks(page, "sh") for line in block.lines]


def summaries(words: list[str]) -> dict[str, dict[str, Any]]:
    """What `compare` prints, by method."""
    result = invoke(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return {summary["algorithm"]: summary for summary in json.loads(result.stdout)}


def test_the_commands_on_local_training_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(TRAINING, "toml"):
        (tmp_path / block.lines[0].removeprefix("# ")).write_text("\n".join(block.lines), encoding="utf-8")
    found = commands(TRAINING)
    assert len(found) > 5
    for number, words in enumerate(found):
        result = invoke(*words, *SMALL, "--out", f"run-{number}", "--json")
        assert result.exit_code == 0, (words, result.stderr)


@pytest.mark.slow
def test_comparing_all_methods_ends_with_the_sentences_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ["compare"] in commands(HELP)
    result = invoke("compare", "--no-report")
    assert result.exit_code == 0, result.stderr
    printed = " ".join(result.stdout.split())
    number = re.compile(r"\d+\.\d|\d+(?= of 20)")
    stated = " ".join(blocks(HELP, "text")[0].lines)
    found = printed[printed.index("Training alone has") :][: len(stated) + 20]
    found = found[: found.rindex("join later.") + len("join later.")]
    assert number.sub("#", found) == number.sub("#", stated)
    figures = [[float(figure) for figure in number.findall(text)] for text in (found, stated)]
    assert figures[0] == pytest.approx(figures[1], abs=2 * TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_sfedhp_and_sfedhp_plus_have_the_figures_of_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load_tool("scikit_sets").write(name, Path())
    (words,) = (words for words in commands(HELP) if f"data.source=sets/{name}.csv" in words)
    words[words.index(f"data.source=sets/{name}.csv")] = f"data.source={name}.csv"
    result = invoke(*words, "--no-report", "--json")
    assert result.exit_code == 0, result.stderr
    runs = json.loads(result.stdout)
    metric = "" if name == "wine" else "rmse_"
    columns = [("local", "pm"), *itertools.product(("sfedhp", "sfedhp-plus"), ("pm", "em", "gm"))]
    found = [
        statistics.mean(run[f"{kind}_{metric}last"] for run in runs if run["algorithm"] == method)
        for method, kind in columns
    ]
    (row,) = (row for row in tables(HELP) if row[0] == f"`{name}`")
    stated = [float(figure) for figure in re.findall(r"[\d.]+", " ".join(row[1:]))]
    assert found == pytest.approx(stated, abs=2 * TOLERANCE)


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

"""The pages on time series and tokens: scripts and commands run on real data, and give the figures stated."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression

from sfedhp.data import DataOptions, federate
from tests.support.commands import run_command, run_script
from tests.support.pages import DOCS, blocks, tables


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("page", "keys", "tolerance"),
    [
        ("time-series.md", ["gm_rmse_last", "gm_mae_last", "gm_r2_last"], {"rel": 0.03}),
        ("tokens.md", ["gm_last"], {"abs": 5.0}),  # another machine rounds differently
    ],
)
def test_the_commands_give_the_figures_of_the_page(
    page: str, keys: list[str], tolerance: dict[str, Any], whole: bool, tmp_path: Path
) -> None:
    """The whole runs take long; one round shows that the commands work."""
    write_data(page, tmp_path)
    stated = {row[0].strip("`"): row[1:] for row in tables(DOCS / page) if row[0].startswith("`runs/")}
    (commands,) = (block.lines for block in blocks(DOCS / page, "sh"))
    train, predict = (shlex.split(line) for line in commands)
    figures = [float(figure) for figure in stated[train[train.index("--out") + 1]]]
    if not whole:
        train = [re.sub(r"^rounds=\d+$", "rounds=1", word) for word in train]
    out, err = run_command([*train, "--json"], tmp_path, strict=True)
    assert "Warning" not in err
    result = json.loads(out)
    if whole:
        assert [result[key] for key in keys] == pytest.approx(figures, **tolerance)
    else:
        assert result["rounds"] == 1
    run_command(predict, tmp_path, strict=True)
    rows = len((tmp_path / "predicted.csv").read_text().splitlines()) - 1
    assert rows == (1177 if page == "tokens.md" else 3104)


def test_the_figures_of_scikit_learn_beside_them(tmp_path: Path) -> None:
    write_data("time-series.md", tmp_path)
    arrays = np.load(tmp_path / "eeg.npz")
    inputs, targets, test = arrays["inputs"][..., 0], arrays["labels"], arrays["test"]
    guesses = [inputs[test, -1], LinearRegression().fit(inputs[~test], targets[~test]).predict(inputs[test])]
    errors = [float(np.sqrt(((guess - targets[test]) ** 2).mean())) for guess in guesses]
    text = " ".join((DOCS / "time-series.md").read_text(encoding="utf-8").split())
    stated = re.search(r"an RMSE of ([\d.]+), and a linear model .*? in one place\) ([\d.]+)\.", text)
    assert stated is not None
    assert errors == pytest.approx([float(figure) for figure in stated.groups()], abs=2e-3)

    write_data("tokens.md", tmp_path)
    names = DataOptions(str(tmp_path / "names.npz"))
    federation, _ = federate(names, edges=4, clients_per_edge=5, seed=0)  # the run's rows
    # A letter for each token, so that groups of tokens are groups of letters.
    texts = ["".join(chr(0x4E00 + int(token)) for token in row if token) for row in federation.inputs]
    counts = CountVectorizer(analyzer="char", ngram_range=(1, 3)).fit_transform(texts)
    train, rest = np.concatenate(federation.train), np.concatenate(federation.test)
    linear = LogisticRegression(max_iter=3000).fit(counts[train], federation.labels[train])
    stated = re.search(r"training rows in one place\) has (\d+)\.", (DOCS / "tokens.md").read_text())
    assert stated is not None
    score = 100 * linear.score(counts[rest], federation.labels[rest])
    assert score == pytest.approx(float(stated[1]), abs=1)


def write_data(page: str, folder: Path) -> None:
    """Run the script of a page, and write the files that it names."""
    script = []
    for block in blocks(DOCS / page, "python"):
        if block.lines[0].startswith("# file: "):
            (folder / block.lines[0].removeprefix("# file: ")).write_text("\n".join(block.lines))
        else:
            script += block.lines
    run_script(script, folder)

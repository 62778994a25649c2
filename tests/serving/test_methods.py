"""Every method: its saved models, used alone, predict as the run says they do, and it has a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sfedhp
from sfedhp.algorithms import ALGORITHMS
from sfedhp.config import from_dict
from sfedhp.report.facts import read_facts
from sfedhp.report.page import render_content
from sfedhp.serving.load import load
from sfedhp.serving.predict import predict
from tests.support.short_runs import SMALL, arrays

TEST = np.arange(60) // 6 % 3 == 0  # of each client every third row
ARRAYS = {**arrays(), "test": TEST}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_saved_models_predict_as_the_run_says(name: str, tmp_path: Path) -> None:
    edges = {"edge_rounds": 2} if ALGORITHMS[name].tiers == 3 else {}
    method = from_dict({"algorithm": {"name": name, **edges}}).algorithm
    run = sfedhp.run(replace(SMALL, algorithm=method, rounds=2), data=ARRAYS, out=tmp_path / name)
    clients = ARRAYS["client"][TEST]
    found = 0
    for saved in load(tmp_path / name).saved:
        if saved.card.features:
            with pytest.raises(sfedhp.InputError, match="predicts with more than the network"):
                _ = saved.module
            continue
        predicted = np.array(predict(saved, ARRAYS["inputs"][TEST]).values)
        mine = np.isin(clients, seats(saved.card.tier, saved.card.name))
        right = 100 * (predicted == ARRAYS["labels"][TEST].astype(str))[mine].mean()
        assert saved.card.metrics["accuracy"] == pytest.approx(right), saved.path
        found += 1
    content = render_content(read_facts([tmp_path / name]))
    for kind in ("pm", "em", "gm"):
        value = run.summary[f"{kind}_last"]
        shown = f"<b>{value:.2f}\N{NO-BREAK SPACE}%</b>" if value is not None else None
        assert shown is None or shown in content.html
        assert (f"<span>{kind.upper()}, " in content.html) == (value is not None)
        found += value is not None
    assert found


def seats(tier: str, name: str) -> list[int]:
    """The clients of which a model is."""
    if tier == "global":
        return list(range(6))
    edge, *seat = (int(number) for number in name.split("-")[1:])
    return [3 * edge + number for number in (seat or range(3))]

"""`sfedhp check`: every line with its verdict, alarms at the end, and never a refusal."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from rich.cells import cell_len

FIGURES = ["data.source=mnist", "model.name=dnn"]
DATASETS = os.environ.get("SFEDHP_DATA")  # before the fixtures hide it


def test_every_group_is_printed_with_verdicts(sfedhp, tiny):
    result = sfedhp("check", *tiny, "model.weight_decay=0.1")
    assert result.exit_code == 0
    for title in ("Constants", "Conditions", "Bounds", "Practical limits", "Forecast"):
        assert title in result.stdout
    assert "L_F = λ₂ + γ₂/ρ" in result.stdout
    assert "outside" in result.stdout
    assert "inside" in result.stdout
    assert result.stdout.rstrip().endswith("No practical limit is exceeded.")


def deeper(words):
    """Two layers, whose curvature counts."""
    return [*(word for word in words if not word.startswith("model.name")), "model.name=dnn-small"]


def test_on_80_columns_notes_stand_below(sfedhp, tiny, monkeypatch):
    words = ["check", *deeper(tiny), "algorithm.client_proximity=60", "algorithm.edge_proximity=5"]
    wide = sfedhp(*words).stdout
    assert re.search(r"^a personal model's step: .* expect a collapse or a divergence *$", wide, re.MULTILINE)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    text = re.sub(r"\x1b\[[\d;]*m", "", sfedhp(*words).stdout)
    assert max(map(cell_len, text.splitlines()[1:])) <= 80  # but for the file's name
    assert "…" not in text
    pattern = (
        r"^a personal model's step: η\(λ \+ h\) < 2 +[\d.]+ +< 2 +outside, [\d.]+ times *\n\(expect a coll"
    )
    assert re.search(pattern, text, re.MULTILINE)
    assert re.search(r"^seconds in all +[\d.]+ s *\n\(", text, re.MULTILINE)
    assert re.search(
        r"^ALARM  a personal model's step: .* times; ?\nexpect a collapse or", text, re.MULTILINE
    )


def test_an_exceeded_limit_is_repeated_and_not_refused(sfedhp, tiny):
    result = sfedhp("check", *deeper(tiny), "algorithm.client_proximity=60", "algorithm.edge_proximity=5")
    assert result.exit_code == 0
    assert "ALARM  a personal model's step: η(λ + h) < 2: 3." in result.stdout
    assert "collapse" in result.stdout


def test_oscillation_is_no_alarm(sfedhp, tiny):
    words = ["algorithm.client_sparsity=1e-3", "algorithm.client_proximity=25"]
    result = sfedhp("check", *tiny, *words)
    assert "oscillate" in result.stdout
    assert "ALARM" not in result.stdout


def test_json_has_every_line(sfedhp, tiny):
    found = json.loads(
        sfedhp("check", *tiny, "--json", "algorithm=pfedme", "algorithm.client_proximity=60").stdout
    )
    assert found["algorithm"] == "pfedme"
    assert "personal_rate" in found["alarms"]
    lines = {line["name"]: line for line in found["lines"]}
    assert lines["personal_rate"]["inside"] is False
    assert lines["personal_rate"]["factor"] > 1
    assert lines["bytes_client_cloud"]["limit"] is None
    assert found["parameters"] == 15


def test_other_methods_say_that_the_theorems_are_not_about_them(sfedhp, tiny):
    result = sfedhp("check", *tiny, "algorithm=fedavg", "rounds=100000")
    assert "The theorems are about sFedHP only." in result.stdout
    assert "Conditions" not in result.stdout
    assert "algorithm.edge_rounds is ignored" in result.stderr
    assert "seconds in all" in result.stdout


def test_a_method_without_class_scores_has_a_forecast_only(sfedhp, tiny):
    result = sfedhp("check", *tiny, "algorithm=pfedgp", "pfedgp.chains=2", "pfedgp.gibbs_steps=1")
    assert result.exit_code == 0
    assert "No practical limits are known" in result.stdout


def test_notes_on_the_data_are_passed_on(sfedhp, tiny):
    held = dict(np.load("tiny.npz"))
    np.savez("tiny.npz", **held, client=np.arange(len(held["labels"])) % 3)
    result = sfedhp("check", *tiny, "--json")
    assert "1 of 4 seats are empty" in result.stderr
    assert json.loads(result.stdout)["alarms"] == []


def test_bad_input_is_a_sentence(sfedhp, tiny):
    result = sfedhp("check", "algorithm.client_proximity=-1")
    assert result.exit_code == 2
    assert "algorithm.client_proximity" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(DATASETS is None, reason="needs the full datasets: set SFEDHP_DATA")
def test_pfedme_on_standardized_pixels_is_flagged_and_scaled_ones_are_not(process, monkeypatch):
    """λ = 30 collapses in the paper's tables 2 and 3; η = .05 and batches of 20 are the defaults."""
    monkeypatch.setenv("SFEDHP_DATA", DATASETS)
    for scale, alarmed in (("per_pixel", True), ("unit", False)):
        words = [*FIGURES, f"data.scale={scale}", "algorithm=pfedme", "algorithm.client_proximity=30"]
        child = process("check", *words, "--json")
        found = json.loads(child.communicate()[0])
        assert bool(found["alarms"]) is alarmed, scale


@pytest.mark.parametrize("width", [60, 40])
def test_on_narrow_terminals_titles_stand_once(sfedhp, tiny, monkeypatch, width):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    text = re.sub(r"\x1b\[[\d;]*m", "", sfedhp("check", *tiny, "model.name=dnn-small").stdout)
    flowing = " ".join(text.split())
    assert max(map(cell_len, text.splitlines()[1:])) <= width
    assert flowing.count("Conditions of the ") == 1
    assert "limit ," not in flowing
    if width == 40:
        assert re.search(
            r"^its proof: λ₂ > 2λ₁ *\n(.+\n)+  value 20, limit > 40,\n  outside", text, re.MULTILINE
        )


def test_extreme_settings_have_an_answer_too(sfedhp, tiny):
    words = ["algorithm.smoothing=1e-300", "algorithm.client_sparsity=1e-3", f"rounds={10**17}"]
    result = sfedhp("check", *tiny, *words)
    assert result.exit_code == 0
    assert re.search(r"^Theorem 3: λ ≥ .* > [\d.]+e\+29[78] ", result.stdout, re.MULTILINE)
    assert re.search(r"^seconds in all +[\d.]+e\+\d+ s ", result.stdout, re.MULTILINE)
    extreme = ["algorithm.client_proximity=1e-200", "algorithm.edge_proximity=1e-200"]
    assert sfedhp("check", *tiny, *extreme).exit_code == 0

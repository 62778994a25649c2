"""`sfedhp personalize`: a newcomer's model from a run's folder."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file

from sfedhp.personalizing import newcomer_of, personalize, read_models
from sfedhp.running import read_experiment


@pytest.fixture
def run(sfedhp, tiny, here):
    """The folder of a run, with the rows of somebody who was not in it beside."""
    assert sfedhp("run", *tiny, "--out", "run").exit_code == 0
    random = np.random.default_rng(5)
    labels = np.arange(30) % 2
    np.savez("newcomer.npz", inputs=random.normal(size=(30, 4)) + 2 * np.eye(4)[labels], labels=labels)
    return here / "run"


def test_the_model_is_written_and_its_gain_is_told(sfedhp, run):
    result = sfedhp("personalize", "run", "data.source=newcomer.npz", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["model"] == "run/newcomers/newcomer.safetensors"
    assert (found["rows"], found["test_rows"]) == (22, 8)
    assert found["losses"].keys() == {"global", "edge-0", "edge-1"}
    experiment = read_experiment(run)
    newcomer = newcomer_of(experiment, "newcomer.npz")
    expected = personalize(replace(experiment, batch_size=0), read_models(run, (4,)), newcomer)
    assert (found["before"], found["after"]) == (expected.before, expected.after)
    saved = load_file(found["model"])
    for name, value in expected.model.state_dict().items():
        assert saved[name].equal(value)


def test_people_see_the_choice_and_the_accuracies(sfedhp, run):
    words = ["data.source=newcomer.npz", "algorithm.personal_steps=100", "algorithm.client_proximity=0.1"]
    result = sfedhp("personalize", "run", *words, "--out", "own.safetensors")
    assert result.exit_code == 0
    assert "← start" in result.stdout
    assert "before" in result.stdout
    assert "after" in result.stdout
    assert "model      own.safetensors" in result.stdout
    assert load_file("own.safetensors")


def test_settings_of_the_newcomer_count(sfedhp, run):
    base = ["personalize", "run", "data.source=newcomer.npz", "--json", "--start", "global"]
    plain = json.loads(sfedhp(*base).stdout)
    assert plain["start"] == "global"
    half = json.loads(sfedhp(*base, "data.test_share=0.5").stdout)
    assert half["test_rows"] == 15
    sfedhp(*base, "--out", "whole.safetensors")
    sfedhp(*base, "batch_size=4", "--out", "batch.safetensors")
    whole, batch = load_file("whole.safetensors"), load_file("batch.safetensors")
    assert any(not whole[name].equal(batch[name]) for name in whole)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run"], "The newcomer's rows are missing"),
        (["run", "data.source=mnist"], "The newcomer's rows are missing"),
        (["run", "data.source=newcomer.npz", "rounds=5"], "rounds means nothing here"),
        (["run", "data.source=nobody.npz"], "There is no file nobody.npz"),
        (["nowhere", "data.source=newcomer.npz"], "nowhere holds no run"),
        (["run", "data.source=newcomer.npz", "--start", "edge-9"], "There is no model 'edge-9'"),
        (["run", "data.source=newcomer.npz", "algorithm.personal_steps=0"], "personal_steps"),
        (["run", "data.source=newcomer.npz", "--out", "newcomer.npz/own"], "newcomer.npz"),
    ],
)
def test_bad_input_is_one_sentence(sfedhp, run, words, sentence):
    result = sfedhp("personalize", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1

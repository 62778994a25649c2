"""`sfedhp compare`."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import contextmanager

import pytest

from sfedhp.algorithms import ALGORITHMS
from sfedhp.cli import compare as module
from sfedhp.cli import execution
from sfedhp.types import InputError


@pytest.fixture
def quick(tiny):
    return [*tiny, "rounds=2", "algorithm.local_steps=2", "algorithm.local_rounds=2"]


def test_all_methods_run_on_the_same_data(sfedhp, quick, here):
    result = sfedhp("compare", *quick, "algorithm.name=fedavg", "--out", "all")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    methods = [line.partition("│")[0].strip() for line in lines if "│" in line]
    assert methods == ["", "method", *ALGORITHMS]
    assert "algorithm.name is left out: every method runs; choose some with --only." in result.stderr
    assert [name for name in ALGORITHMS if (here / "all" / name / "config.toml").exists()] == [*ALGORITHMS]
    sections = [
        (here / "all" / name / "config.toml").read_text().partition("[data]")[2].partition("[engine]")[0]
        for name in ALGORITHMS
    ]
    assert len(set(sections)) == 1
    assert result.stdout.rstrip().endswith("below all")


def test_the_json_is_one_list_and_keys_go_where_they_belong(sfedhp, quick, here):
    words = ["--only", "pfedme, sfedhp,pfedme", "--json"]
    result = sfedhp("compare", *quick, "algorithm.client_proximity=5", "pfedme.client_proximity=7", *words)
    assert result.exit_code == 0
    summaries = json.loads(result.stdout)
    assert [summary["algorithm"] for summary in summaries] == ["pfedme", "sfedhp"]
    folders = [here / summary["folder"] for summary in summaries]
    assert folders[0].parent == folders[1].parent
    assert re.fullmatch(r"compare-tiny-\d{8}-\d{6}", folders[0].parent.name)
    pulls = [
        re.search(r"client_proximity = (\S+)", (folder / "config.toml").read_text())[1] for folder in folders
    ]
    assert pulls == ["7.0", "5.0"]
    assert "algorithm.local_steps is left out: it is a key of fedavg" in result.stderr


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_method_that_diverges_does_not_stop_the_others(sfedhp, quick, words):
    rates = ["fedavg.local_rate=1e38", "--only", "fedavg,sfedhp"]
    result = sfedhp("compare", *quick, *rates, *words)
    assert result.exit_code == 3
    if words:
        assert [row["finished"] for row in json.loads(result.stdout)] == [False, True]
        assert "error: fedavg: diverged in round" in result.stderr
    else:
        assert re.search(r"^fedavg †│", result.stdout, re.MULTILINE)
        assert re.search(r"^sfedhp  │", result.stdout, re.MULTILINE)
        assert "† fedavg: diverged in round" in result.stdout


def test_a_method_that_is_refused_does_not_lose_what_ran(sfedhp, quick, monkeypatch):
    prepare = module.prepare

    def choosy(experiment):
        if experiment.algorithm_name == "fedavg":
            raise InputError("Not with this model.")
        return prepare(experiment)

    monkeypatch.setattr(module, "prepare", choosy)
    result = sfedhp("compare", *quick, "--only", "sfedhp,fedavg,fedprox")
    assert result.exit_code == 2
    assert "† fedavg: Not with this model." in result.stdout
    assert re.search(r"^fedprox +│", result.stdout, re.MULTILINE)
    result = sfedhp("compare", *quick, "--only", "fedavg,fedprox")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("error: Not with this model.\n")


def test_a_signal_stops_after_the_round_and_says_what_is_left(sfedhp, quick, here, monkeypatch):
    @contextmanager
    def shown(title):
        def report(progress):
            if (title, progress.row["round"]) == ("fedavg", 1):
                os.kill(os.getpid(), signal.SIGTERM)

        yield report

    monkeypatch.setattr(execution, "rounds_shown", shown)
    result = sfedhp("compare", *quick, "rounds=3", "--only", "sfedhp,fedavg,fedprox,pfedme", "--out", "some")
    assert result.exit_code == 143
    assert "Go on with: sfedhp resume some/fedavg" in result.stderr
    again = re.search(r"Not begun: fedprox, pfedme. Run them with: sfedhp (.*)$", result.stderr)[1]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert sfedhp("resume", "some/fedavg").exit_code == 0
    assert sfedhp(*again.split()).exit_code == 0
    assert len(list((here / "some").glob("*/models"))) == 4


def test_the_notes_are_said_once(sfedhp, quick, here):
    result = sfedhp("compare", *quick, "data.train_per_label=2", "--only", "sfedhp,fedavg")
    assert result.stderr.count("data.train_per_label has no meaning") == 1

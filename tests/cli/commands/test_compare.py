"""`sfedhp compare`."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import contextmanager

import numpy as np
import pytest

from sfedhp.algorithms import COMPARED
from sfedhp.cli import execution
from sfedhp.cli.commands import compare as module
from sfedhp.cli.output.comparison import MethodResult, print_comparison
from sfedhp.core.errors import InputError
from sfedhp.runs.prepare import prepare


@pytest.fixture
def quick(tiny):
    return [*tiny, "rounds=2", "algorithm.local_steps=2", "algorithm.local_rounds=2"]


def test_all_methods_run_on_the_same_data(sfedhp, quick, here):
    (here / "exp.toml").write_text('[algorithm]\nname = "fedavg"\n')
    result = sfedhp("compare", "exp.toml", *quick, "--out", "all")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[: lines.index("")]] == ["method", lines[1], *COMPARED]
    assert "algorithm.name of the file is ignored: several methods run; choose some with" in result.stderr
    assert [name for name in COMPARED if (here / "all" / name / "config.toml").exists()] == [*COMPARED]
    sections = [
        (here / "all" / name / "config.toml").read_text().partition("[data]")[2].partition("[engine]")[0]
        for name in COMPARED
    ]
    assert len(set(sections)) == 1
    *_, folder, sentence, page = result.stdout.splitlines()
    assert page == "Page: all/report.html"
    assert folder.endswith("below all")
    assert sentence.startswith("Training alone has ")
    tables = [(here / "all" / name / "clients.csv").read_text().splitlines() for name in COMPARED]
    assert {table[0].rpartition(",")[2] for table in tables} == {"alone"}
    of_local = next(table for name, table in zip(COMPARED, tables, strict=True) if name == "local")
    pm = of_local[0].split(",").index("pm")
    assert [row.split(",")[pm] for row in of_local[1:]] == [row.rpartition(",")[2] for row in of_local[1:]]
    shown = sfedhp("show", "all")
    assert sentence in shown.stdout.splitlines()
    assert "alone" in sfedhp("show", "all/fedavg").stdout


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
        re.findall(r"client_proximity = (\S+)", (folder / "config.toml").read_text())[0] for folder in folders
    ]
    assert pulls == ["7.0", "5.0"]
    assert "algorithm.local_steps is ignored: it is a key of fedavg" in result.stderr


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_method_that_diverges_does_not_stop_the_others(sfedhp, quick, words):
    rates = ["fedavg.local_rate=1e38", "--only", "fedavg,sfedhp"]
    result = sfedhp("compare", *quick, *rates, *words)
    assert result.exit_code == 3
    if words:
        assert [row["finished"] for row in json.loads(result.stdout)] == [False, True]
        assert "fedavg: diverged in round" in result.stderr
    else:
        assert re.search(r"^fedavg† ", result.stdout, re.MULTILINE)
        assert re.search(r"^sfedhp  ", result.stdout, re.MULTILINE)
        assert "† fedavg: diverged in round" in result.stdout


def test_a_method_that_is_refused_does_not_lose_what_ran(sfedhp, quick, monkeypatch):
    def choosy(experiment):
        if experiment.algorithm_name == "fedavg":
            raise InputError("Not with this model.")
        return prepare(experiment)

    monkeypatch.setattr(module, "prepare", choosy)
    result = sfedhp("compare", *quick, "--only", "sfedhp,fedavg,fedprox")
    assert result.exit_code == 2
    assert "† fedavg: Not with this model." in result.stdout
    assert re.search(r"^fedprox +[\d–]", result.stdout, re.MULTILINE)
    result = sfedhp("compare", *quick, "--only", "fedavg,fedprox")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("error: Not with this model.\n")


def test_a_method_that_was_not_named_may_be_unsuitable(sfedhp, tiny, here):
    random = np.random.default_rng(0)
    np.savez("numbers.npz", inputs=random.normal(size=(40, 3)), labels=random.normal(size=40))
    words = [*tiny, "data.source=numbers.npz", "rounds=1", "algorithm.local_steps=1"]
    result = sfedhp("compare", *words)
    assert result.exit_code == 0
    assert "† pfedgp: pfedgp is for problem = classification, and this is regression" in result.stdout
    assert "Training alone has RMSE " in result.stdout
    named = sfedhp("compare", *words, "--only", "fedavg,pfedgp")
    assert named.exit_code == 2


def ended_in_fedavg(monkeypatch):
    """A signal comes in the second round of FedAvg."""

    @contextmanager
    def shown(title):
        def report(progress):
            if (title, progress.row["round"]) == ("fedavg", 1):
                os.kill(os.getpid(), signal.SIGTERM)

        yield report

    monkeypatch.setattr(execution, "round_progress", shown)


def test_a_signal_stops_after_the_round_and_says_what_is_left(sfedhp, quick, here, monkeypatch):
    ended_in_fedavg(monkeypatch)
    result = sfedhp("compare", *quick, "rounds=3", "--only", "sfedhp,fedavg,fedprox,pfedme", "--out", "some")
    assert result.exit_code == 143
    assert "Resume with: sfedhp resume some/fedavg" in result.stderr
    assert re.search(r"^sfedhp  .*\nfedavg† ", result.stdout, re.MULTILINE)
    assert "† fedavg: stopped after round 2 of 3; these numbers are not final." in result.stdout
    hint = re.search(r"Not started: fedprox, pfedme. Run them with: sfedhp (.*)$", result.stderr)
    assert hint is not None
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert sfedhp("resume", "some/fedavg").exit_code == 0
    assert sfedhp(*hint[1].split()).exit_code == 0
    assert len(list((here / "some").glob("*/models"))) == 4


def test_a_signal_in_the_last_round_of_a_method_stops_the_others(sfedhp, quick, here, monkeypatch):
    ended_in_fedavg(monkeypatch)
    result = sfedhp("compare", *quick, "--only", "sfedhp,fedavg,fedprox", "--out", "some")
    assert result.exit_code == 143
    assert "Resume with" not in result.stderr  # fedavg is finished
    assert "Not started: fedprox. Run them with: sfedhp compare" in result.stderr
    assert not (here / "some" / "fedprox").exists()
    monkeypatch.undo()
    monkeypatch.chdir(here)
    ended_in_fedavg(monkeypatch)
    assert sfedhp("compare", *quick, "--only", "fedavg").exit_code == 0  # nothing is left to stop


def test_the_notes_are_said_once(sfedhp, quick, here):
    result = sfedhp("compare", *quick, "data.train_per_label=2", "--only", "sfedhp,fedavg")
    assert result.stderr.count("data.train_per_label has no effect") == 1


@pytest.mark.parametrize("word", ["algorithm=fedavg", "algorithm.name=fedavg"])
def test_a_method_is_chosen_with_only(sfedhp, quick, here, word):
    result = sfedhp("compare", *quick, word, "--only", "sfedhp")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: algorithm.name=fedavg has no effect here, because several methods run: "
        "choose with --only fedavg.\n"
    )
    assert not (here / "runs").exists()


def test_json_says_which_run_was_stopped_and_where(sfedhp, quick, monkeypatch):
    ended_in_fedavg(monkeypatch)
    result = sfedhp("compare", *quick, "rounds=3", "--only", "sfedhp,fedavg", "--json")
    assert result.exit_code == 143
    assert [(row["stopped_after"], row["trouble"]) for row in json.loads(result.stdout)] == [
        (None, None),
        (2, None),
    ]
    assert "fedavg: stopped after round 2 of 3" in result.stderr


@pytest.fixture
def longest(capsys, monkeypatch):
    """The lines that a terminal of this width shows of the longest row there can be."""
    figures = {
        f"{kind}_{name}": 100.0 for kind in ("pm", "em", "gm") for name in ("last", "validated", "best")
    }
    figures |= {f"{kind}_validated": 99.94 for kind in ("pm", "em", "gm")}
    summary = figures | {"metric": "accuracy", "seconds": 36001.0, "bytes_total": 123_400_000}

    def of(width):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(width))
        print_comparison([MethodResult("heurfedamp", summary, "diverged")])
        lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)
        return lines

    return of


def test_the_longest_marked_row_has_room_on_80_columns(longest):
    lines = longest(80)
    assert lines[1].split()[1:] == [*(3 * ["last", "valid", "best*"]), "time", "sent"]
    assert lines[3] == "heurfedamp†" + 3 * "  100  99.9   100" + " 10:00:01 123.4 MB"
    assert any(line.startswith("* best of all rounds") for line in lines)


def test_a_narrow_terminal_shows_whole_columns_and_says_which_are_missing(longest):
    lines = longest(60)
    assert lines[3].split() == ["heurfedamp†", "100", "99.9", "100", "100", "99.9", "10:00:01", "123.4", "MB"]
    said = " ".join(lines)
    assert "(no room for: PM best*, EM valid, EM best*, GM best*;" in said
    assert "* best of all rounds" not in said  # nothing is marked so
    assert longest(40)[3].split() == ["heurfedamp†", "100", "100", "100", "10:00:01"]


def test_the_json_has_the_gains_over_training_alone(sfedhp, quick):
    result = sfedhp("compare", *quick, "--only", "fedavg,local,pooled", "--json")
    fedavg, local, pooled = json.loads(result.stdout)
    assert fedavg["benefit"]["alone"] == local["pm_last"]
    assert fedavg["benefit"]["gm"]["over_alone"] == fedavg["gm_last"] - local["pm_last"]
    assert fedavg["benefit"]["gm"]["over_pooled"] == fedavg["gm_last"] - pooled["gm_last"]
    assert fedavg["benefit"]["gm"]["clients"] == 4
    assert fedavg["benefit"]["pm"] is None
    assert "Training alone has" in result.stderr
    alone = sfedhp("compare", *quick, "--only", "fedavg", "--json")
    assert json.loads(alone.stdout)[0]["benefit"]["gm"]["over_alone"] is None
    assert "Training alone" not in alone.stderr


def test_a_run_of_a_comparison_that_is_resumed_keeps_the_figures_alone(sfedhp, quick, here):
    sfedhp("compare", *quick, "--only", "fedavg,local", "--out", "both")
    before = (here / "both" / "fedavg" / "clients.csv").read_text()
    assert before.splitlines()[0].endswith(",alone")
    sfedhp("resume", "both/fedavg")
    assert (here / "both" / "fedavg" / "clients.csv").read_text() == before

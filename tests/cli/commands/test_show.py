"""`sfedhp show`: what it prints of a run, an old folder, a sweep, and what it refuses; the hints of `run`."""

from __future__ import annotations

import csv
import json
import re
import shutil

import numpy as np
import pytest

from sfedhp.runs.score_files import SCORE_FILES
from tests.support.paths import ROOT


def clients_of(text):
    """The cells of the table of clients."""
    table = text.split("Clients after round")[1].split("Classes after round")[0]
    return [line.split() for line in table.splitlines()[1:] if re.match(r" +\d", line)]


@pytest.fixture
def many(here):
    """Words of a run with forty clients of unequal sizes; the labels of some are noise."""
    random = np.random.default_rng(1)
    client = np.repeat(np.arange(40), np.arange(40) % 5 + 8)
    labels = random.integers(0, 3, len(client))
    inputs = random.normal(size=(len(client), 4)) + 2 * np.eye(4)[labels]
    np.savez("many.npz", inputs=inputs, labels=labels, client=client)
    words = "data.source=many.npz edges=4 clients_per_edge=10 model.name=mlr rounds=2 algorithm.edge_rounds=2"
    return words.split()


def test_a_run_is_shown_with_its_figures_clients_classes_and_files(sfedhp, tiny, here):
    sfedhp("run", *tiny, "--out", "one")
    result = sfedhp("show", "one")
    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert first == f"sfedhp on {here / 'tiny.npz'}: 2 edges with 4 clients, 3 rounds, seed 0."
    summary = json.loads(sfedhp("resume", "one", "--json").stdout)
    assert re.search(rf"^PM, personal models +{summary['pm_last']:.2f} ", result.stdout, re.MULTILINE)
    with open("one/clients.csv", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["pm"]))
    shown = clients_of(result.stdout)
    assert [line[0] for line in shown] == [row["client"] for row in rows]
    for line, row in zip(shown, rows, strict=True):
        for kind in ("pm", "em", "gm"):
            assert f"{float(row[kind]):.2f}" in line
        assert f"{float(row['loss']):.3f}" in line
    assert [" ".join(line[-2:]) == "worst decile" for line in shown] == [True, False, False, False]
    classes, confusion = result.stdout.split("Classes after round 3")[1].split(
        "Confusion of PM after round 3"
    )
    with open("one/classes.csv", newline="") as file:
        for row in csv.DictReader(file):
            figures = " +".join(f"{float(row[kind]):.2f}" for kind in ("pm", "em", "gm"))
            assert re.search(rf"^ +{row['class']} +{row['test_rows']} +{figures}$", classes, re.MULTILINE)
    matrix = json.loads((here / "one" / "confusion.json").read_text())["pm"]
    for label, counts in enumerate(matrix):
        cells = " *" + " +".join(map(str, (label, *counts)))
        assert re.search(rf"^{cells}$", confusion, re.MULTILINE)
    assert "clients.csv, classes.csv     the accuracy of each client and class" in confusion


def test_names_of_the_data_are_shown_and_cannot_command_the_terminal(sfedhp, here):
    lines = ["x,y,ward,hospital,sick"]
    for row in range(60):
        ward = ["w1", "[bold]w2", "w\x1b[2J3"][row % 3]
        hospital, sick = "north" if ward == "w1" else "south", ("no", "yes")[row // 3 % 2]
        lines.append(f"{row % 7},{row // 3 % 2},{ward},{hospital},{sick}")
    (here / "wards.csv").write_text("\n".join(lines))
    words = [
        "data.source=wards.csv",
        "data.target=sick",
        "data.client_column=ward",
        "data.edge_column=hospital",
    ]
    assert sfedhp("run", *words, "rounds=2", "model.name=mlr", "--out", "one").exit_code == 0
    result = sfedhp("show", "one")
    clients, classes = result.stdout.split("Clients after")[1].split("Classes after")
    assert re.search(r"^\[bold\]w2 +south +15 +5 +no, yes ", clients, re.MULTILINE)
    assert re.search(r"^w\\x1b\[2J3 +south ", clients, re.MULTILINE)
    assert re.search(r"^w1 +north ", clients, re.MULTILINE)
    assert re.search(r"^yes +\d", classes, re.MULTILINE)
    content = json.loads(sfedhp("show", "one", "--json").stdout)
    assert {row["name"] for row in content["clients"]} == {"w1", "[bold]w2", "w\\x1b[2J3"}
    assert [row["name"] for row in content["classes"]] == ["no", "yes"]
    drawn = sfedhp("data", "show", *words)
    assert "\x1b" not in drawn.stdout + result.stdout
    assert re.search(r"north +w1 ", drawn.stdout)
    assert re.search(r"south +\[bold\]w2 ", drawn.stdout)
    assert "labels: 0 no, 1 yes" in drawn.stdout
    shown = json.loads(sfedhp("data", "show", *words, "--json").stdout)
    assert [(each["edge_name"], each["name"]) for each in shown["clients"]] == [
        *(("north", "w1"), ("south", "[bold]w2"), ("south", "w\\x1b[2J3")),
    ]
    assert shown["class_names"] == ["no", "yes"]


def test_at_most_thirty_clients_are_shown_unless_all_are_asked_for(sfedhp, many):
    sfedhp("run", *many, "--out", "one")
    some, every = sfedhp("show", "one").stdout, sfedhp("show", "one", "--all").stdout
    assert len(clients_of(some)) == 30
    assert "(10 more clients; --all shows them)" in some
    lines = clients_of(every)
    assert len(lines) == 40
    assert "more clients" not in every
    assert lines[:30] == clients_of(some)
    assert [line[-1] == "decile" for line in lines] == [True] * 4 + [False] * 36
    figures = [float(re.findall(r"\d+\.\d\d\b", " ".join(line))[0]) for line in lines]
    assert figures == sorted(figures)
    worst = json.loads(sfedhp("show", "one", "--json").stdout)["summary"]["pm_worst_last"]
    assert sum(figures[:4]) / 4 == pytest.approx(worst, abs=0.01)


def test_clients_are_sorted_by_the_model_that_they_would_use(sfedhp, many):
    sfedhp("run", *many, "algorithm=fedavg", "--out", "one")
    content = json.loads(sfedhp("show", "one", "--json").stdout)
    figures = [row["gm"] for row in content["clients"]]
    assert figures == sorted(figures)
    assert {row["pm"] for row in content["clients"]} == {None}
    assert sum(row["worst_decile"] for row in content["clients"]) == 4
    assert re.search(r" –  +– +\d+\.\d\d ", sfedhp("show", "one").stdout)


def test_json_has_everything(sfedhp, tiny):
    summary = json.loads(sfedhp("run", *tiny, "--out", "one", "--json").stdout)
    result = sfedhp("show", "one", "--json")
    content = json.loads(result.stdout)
    assert content["summary"] == summary
    assert content["run"].startswith("sfedhp on ")
    assert (content["edges"], content["clients_total"], content["scores_round"]) == (2, 4, 3)
    assert len(content["clients"]) == 4
    assert len(content["classes"]) == 3
    assert content["confusion"].keys() == {"pm", "em", "gm"}
    assert (content["note"], content["error"]) == (None, None)
    assert content["hints"] == result.stderr.splitlines()


def test_a_folder_of_an_earlier_version_is_shown_as_far_as_it_goes(sfedhp, tiny, here):
    sfedhp("run", *tiny, "--out", "one")
    for name in SCORE_FILES:
        (here / "one" / name).unlink()
    result = sfedhp("show", "one")
    assert result.exit_code == 0
    assert (
        "An earlier version wrote this folder, without the figures of each client; `sfedhp resume one` adds"
        in (result.stdout)
    )
    assert "2 edges with 4 clients" in result.stdout
    assert re.search(r"^PM, personal models +\d", result.stdout, re.MULTILINE)
    assert "clients.csv" not in result.stdout
    assert "history.jsonl" in result.stdout
    content = json.loads(sfedhp("show", "one", "--json").stdout)
    assert (content["clients"], content["classes"], content["confusion"]) == (None, None, None)
    assert content["note"].startswith("An earlier version")
    assert sfedhp("resume", "one").exit_code == 0  # does what the sentence promises
    assert len(clients_of(sfedhp("show", "one").stdout)) == 4


@pytest.mark.parametrize("method", ["sfedhp", "fedavg", "heurfedamp"])
def test_folders_that_an_earlier_version_wrote(sfedhp, method):
    result = sfedhp("show", str(ROOT / "tests" / "runs" / "old_folders" / method))
    assert result.exit_code == 0
    assert re.match(rf"{method} on \S+: 2 edges with 4 clients, 2 rounds, seed 0\.\n", result.stdout)
    assert "An earlier version wrote this folder" in result.stdout


def test_a_run_that_was_killed_says_when_its_figures_are_written(sfedhp, tiny, here):
    sfedhp("run", *tiny, "--out", "one")
    for name in SCORE_FILES:
        (here / "one" / name).unlink()
    shutil.rmtree(here / "one/models")
    history = (here / "one/history.jsonl").read_text().splitlines(keepends=True)
    (here / "one/history.jsonl").write_text("".join(history[:2]))
    result = sfedhp("show", "one")
    assert result.exit_code == 0
    assert "4 clients, 3 rounds, 2 done, seed 0." in result.stdout
    assert "The run has not ended: the figures of each client are written when it ends" in result.stdout
    (here / "one/history.jsonl").write_text("")
    result = sfedhp("show", "one")
    assert (result.exit_code, "3 rounds, 0 done" in result.stdout) == (0, True)


def test_a_run_that_diverged_says_so(sfedhp, tiny):
    words = ["algorithm=fedavg", "algorithm.local_rate=1e38"]
    assert sfedhp("run", *tiny, *words, "--out", "one").exit_code == 3
    result = sfedhp("show", "one")
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"seed 0; diverged in round \d: .*\.\n", result.stdout)
    assert json.loads(sfedhp("show", "one", "--json").stdout)["error"].startswith("diverged in round")


def test_the_cloud_of_a_deployment_has_no_clients(sfedhp, tiny, here):
    sfedhp("run", *tiny, "--out", "one")
    for name in SCORE_FILES:
        (here / "one" / name).unlink()
    (here / "one/run.json").write_text("{}")
    assert "The cloud of a deployment does not learn the figures" in sfedhp("show", "one").stdout


def test_a_sweep_is_shown_with_a_line_for_each_run(sfedhp, tiny):
    sfedhp("sweep", *tiny, "algorithm.edge_rate=0.01,1e200", "seeds=2", "--out", "all")
    result = sfedhp("show", "all")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if "seed=" in line]
    assert len(lines) == 4
    content = json.loads(sfedhp("show", "all", "--json").stdout)
    for line, each in zip(lines, content, strict=True):
        summary = each["summary"]
        if each["error"]:
            assert "diverged" in line
        else:
            figures = " +".join(f"{summary[f'{kind}_last']:.2f}" for kind in ("pm", "em", "gm"))
            assert re.search(rf"sfedhp +3 +{figures}$", line)
    assert [bool(each["error"]) for each in content] == [False, False, True, True]
    one = content[0]["summary"]["folder"]
    assert len(clients_of(sfedhp("show", one).stdout)) == 4


def test_other_folders_are_refused(sfedhp, tiny, here):
    sfedhp("run", *tiny, "--out", "one")
    shutil.copytree("one", "other")
    (here / "other/history.jsonl").unlink()
    shutil.copytree("one", "foreign")
    (here / "foreign/config.toml").write_text("[tool]\nname = 'x'\n")
    shutil.copytree("one", "damaged")
    (here / "damaged/clients.csv").write_text("client\nx\n")
    for folder, sentence in {
        "nowhere": "nowhere is not a folder: name the folder of a run or a sweep.",
        "tiny.npz": "tiny.npz is not a folder: name the folder of a run or a sweep.",
        "one/models": "one/models holds no run: name a folder that `sfedhp run`, `compare` or `sweep` has",
        "other": "other holds no run: there is no history.jsonl.",
        "foreign": "foreign holds no run: there is no rounds in its config.toml.",
        "damaged": "damaged/clients.csv is damaged: its content does not match its checksum. Delete",
    }.items():
        result = sfedhp("show", folder)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert sentence in result.stderr


@pytest.fixture
def hopeless(here):
    """Words of a run whose accuracy cannot move: all inputs are zero."""
    labels = np.repeat([0, 1, 1], 20)
    np.savez("zeros.npz", inputs=np.zeros((60, 4)), labels=labels, client=np.arange(60) % 4)
    words = "data.source=zeros.npz edges=2 clients_per_edge=2 model.name=mlr rounds=3 algorithm.edge_rounds=2"
    return words.split()


def test_run_and_show_give_hints_on_stderr(sfedhp, hopeless):
    result = sfedhp("run", *hopeless, "--out", "one", "--json")
    assert result.exit_code == 0
    json.loads(result.stdout)
    told = [line for line in result.stderr.splitlines() if "All predictions" in line or "never moved" in line]
    assert len(told) == 2
    assert "All predictions of PM (class 1), EM (class 1) and GM (class 1) are one class: " in told[0]
    assert "The accuracy of PM" in told[1]
    assert sfedhp("show", "one").stderr.splitlines() == told
    # A finished run that is resumed did nothing, and tells nothing.
    assert sfedhp("resume", "one").stderr == "The run in one was already finished.\n"


def test_run_says_that_accuracy_was_still_rising(sfedhp, many):
    early = sfedhp("run", *many, "algorithm=fedavg", "rounds=3").stderr
    assert re.search(r"rising at the end \(GM by \d\.\d points in the last third\): use more rounds", early)
    assert early.endswith("for example rounds=6.\n")
    assert "still rising" not in sfedhp("run", *many, "algorithm=fedavg", "rounds=9").stderr


def test_compare_names_the_method_of_a_hint(sfedhp, hopeless):
    result = sfedhp("compare", *hopeless, "--only", "fedavg,sfedhp", "--out", "all")
    assert "fedavg: All predictions of GM (class 1) are one class: " in result.stderr
    assert "sfedhp: All predictions of PM (class 1), EM (class 1) and GM" in result.stderr
    lines = [line for line in sfedhp("show", "all").stdout.splitlines() if re.match("fedavg|sfedhp", line)]
    assert len(lines) == 2


def test_sweep_names_the_run_of_a_hint_and_prints_few(sfedhp, hopeless):
    result = sfedhp("sweep", *hopeless, "algorithm.edge_rate=0.01,0.02", "--out", "all", "--json")
    assert "edge_rate=0.01,seed=0: All predictions of PM (class 1), EM (class 1) and GM" in result.stderr
    assert "edge_rate=0.02,seed=0: The accuracy of PM" in result.stderr
    many = sfedhp("sweep", *hopeless, "seeds=5", "--out", "more")
    assert "(4 more; `sfedhp show` prints those of a run)" in many.stderr


@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_unscaled_inputs_are_named_before_the_first_round(sfedhp, here, command):
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(60, 4)) * [1, 1, 1e4, 1]
    np.savez("raw.npz", inputs=inputs, labels=np.arange(60) % 2, client=np.arange(60) // 2 % 4)
    words = "data.source=raw.npz edges=2 clients_per_edge=2 model.name=mlr rounds=1 algorithm.edge_rounds=1"
    only = ["--only", "sfedhp"] if command == "compare" else []
    result = sfedhp(command, *words.split(), *only, "--no-report")
    lines = result.stderr.splitlines()
    said = [place for place, line in enumerate(lines) if "are not scaled, and input 2 reaches" in line]
    assert len(said) == 1
    assert said[0] < next(place for place, line in enumerate(lines) if "round 1/1" in line)
    assert (
        "not scaled"
        not in sfedhp(command, *words.split(), "data.scale=standard", *only, "--no-report").stderr
    )

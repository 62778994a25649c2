"""The page as text: what odd folders get, names, and that it names no address."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sfedhp
from sfedhp import DataOptions, Experiment, FedAvg, SFedHP
from sfedhp.algorithms import Ditto, Local
from sfedhp.report.facts import read_facts
from sfedhp.report.page import render
from sfedhp.report.tables import latex_table
from sfedhp.runs.score_files import SCORE_FILES, write_alone
from tests.support.json_lines import json_lines
from tests.support.run_folders import write_run
from tests.support.short_runs import SMALL, remove_checksums_of_scores


def page(*folders: Path) -> str:
    return render(read_facts(folders))


def sentences(text: str) -> str:
    return re.sub(r"<[^>]+>", " ", text)


def test_the_page_names_no_address(tmp_path):
    text = page(write_run(tmp_path / "one"))
    assert set(re.findall(r"[a-z]+://[^\s\"'<)]*", text)) == {"http://www.w3.org/2000/svg"}  # the name of SVG
    assert not re.search(r"(src|href)=\"(?!data:,)", text)
    assert "@import" not in text
    assert "url(" not in text


def test_a_run_that_has_not_ended_says_why_there_are_no_clients(tmp_path):
    folder = write_run(tmp_path / "one")
    for name in SCORE_FILES:
        (folder / name).unlink()
    text = page(folder)
    assert "The run has not ended" in text
    assert text.count('data-tier="client"') == 2 * 6


def test_a_run_without_rounds_has_a_page(tmp_path):
    folder = write_run(tmp_path / "one")
    (folder / "history.jsonl").write_text("")
    for name in SCORE_FILES:
        (folder / name).unlink()
    assert "0 of 4 rounds" in sentences(page(folder))


def test_a_run_that_diverged_says_so(tmp_path):
    folder = write_run(tmp_path / "one")
    rows = json_lines(folder / "history.jsonl")
    rows[-1] |= {"pm": None, "em": None, "gm": None, "train_loss": None}
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert f"{rows[-2]['gm']:.2f}" in page(folder)


def test_a_folder_of_an_earlier_version_has_labels_without_rows(tmp_path):
    folder = write_run(tmp_path / "one")
    path = folder / "clients.csv"
    remove_checksums_of_scores(folder)
    path.write_text("\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()) + "\n")
    assert "labels 0, 1, 2; PM" in page(folder)


def test_names_of_the_data_are_shown(tmp_path):
    folder = write_run(tmp_path / "one")
    facts = read_facts([folder])
    scores = facts.runs[0].record.scores
    assert scores is not None
    for row in scores.clients:
        row |= {"name": f"ward-{row['client']}", "edge_name": ["north", "south"][row["edge"]]}
    for row in scores.classes:
        row["name"] = ["flu", "cold", "<none>"][row["class"]]
    text = render(facts)
    assert 'aria-label="ward-0 of north: ' in text
    assert re.search(r"labels flu \(\d+\), cold \(\d+\), &lt;none&gt; \(\d+\)", text)
    assert "<none>" not in text
    assert ">south</text>" in text


def test_whether_it_helps_is_counted_from_the_clients(tmp_path):
    folder = write_run(tmp_path / "one")
    with (folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    better = sum(float(row["pm"]) > float(row["gm"]) for row in rows)
    worse = sum(float(row["pm"]) < float(row["gm"]) for row in rows)
    assert 0 < better < 6
    assert f"{better} of 6 clients" in page(folder)
    assert f"served better by their own models, {worse} worse." in page(folder)


def test_training_alone_is_compared_with_where_it_is_known(tmp_path):
    folder = write_run(tmp_path / "one")
    write_alone(folder, dict.fromkeys(range(6), 70.0))
    with (folder / "clients.csv").open(newline="") as file:
        lost = sum(float(row["pm"]) < 70 for row in csv.DictReader(file))
    text = page(folder)
    assert f"Training alone would be better for {lost} of 6 clients." in text
    assert text.count("trained alone 70.00 %") == 2 * 6


def test_a_comparison_says_what_it_gains_over_training_alone(tmp_path):
    one = write_run(tmp_path / "one")
    two = write_run(tmp_path / "two", experiment=Experiment(algorithm=Local()))
    assert "Training alone has " in page(one, two)


def test_a_run_says_that_only_its_own_models_are_compared(tmp_path):
    folder = write_run(tmp_path / "one")
    sentence = "This compares models of this run only; <code>sfedhp compare</code> also compares them with"
    assert sentence in page(folder)
    write_alone(folder, dict.fromkeys(range(6), 70.0))
    assert sentence not in page(folder)


def test_the_run_with_the_best_personal_models_is_chosen_first(tmp_path):
    methods = {"ditto": Ditto(), "fedavg": FedAvg(), "local": Local(), "sfedhp": SFedHP()}
    folders = [
        write_run(tmp_path / name, experiment=Experiment(algorithm=method))
        for name, method in methods.items()
    ]
    for folder, value in zip(folders, [70.0, None, 95.0, 80.0], strict=True):
        rows = json_lines(folder / "history.jsonl")
        for row in rows:
            row["pm"] = value
        (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = page(*folders)
    assert "the best personal models (sfedhp, 80.0 %)" in text
    assert '<option value="3" selected>sfedhp</option>' in text
    assert text.count(" selected>") == 1
    # Its tree, and its clients and classes.
    assert re.findall(r'<div data-run="(\d)">', text) == ["3", "3"]


def test_runs_of_different_problems_share_a_page(tmp_path):
    one = write_run(tmp_path / "one", experiment=Experiment(algorithm=FedAvg()))
    two = write_run(tmp_path / "two", experiment=Experiment(problem="regression"))
    path = two / "history.jsonl"
    path.write_text(re.sub(r'"(pm|em|gm)"', r'"\1_rmse"', path.read_text()))
    for name in SCORE_FILES:
        (two / name).unlink()
    assert "two</option>" in page(two, one)


def test_changed_keys_come_first(tmp_path):
    text = page(write_run(tmp_path / "one", per_edge=7))
    changed, others = text.split('id="changed-keys"')[1].split('id="default-keys"')
    assert "clients_per_edge" in changed
    assert "batch_size" not in changed
    assert "batch_size" in others


def test_settings_that_differ_are_overlaid_and_tabulated(tmp_path):
    one = write_run(tmp_path / "one")
    two = write_run(tmp_path / "two", experiment=Experiment(algorithm=FedAvg()))
    text = page(one, two)
    assert 'id="curves-gm"' in text
    differing = text.split('id="differing"')[1].split("</table>")[0]
    assert "algorithm.name" in differing
    assert "batch_size" not in differing


@pytest.mark.parametrize("classes", [2, 60])
def test_many_classes_are_cut_in_the_chart_but_not_in_the_table(tmp_path, classes):
    text = page(write_run(tmp_path / "one", classes=classes))
    chart = text.split('id="classes"')[1].split("</svg>")[0]
    assert chart.count('class="target"') == min(classes, 25)
    table = text.split('id="classes-table"')[1].split("</table>")[0]
    assert table.count("<tr>") == classes + 1


def test_errors_of_regression_are_shown_with_their_direction(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(120, 3))
    targets = inputs @ [1.0, 2.0, 3.0] + random.normal(size=120)
    np.savez(tmp_path / "numbers.npz", inputs=inputs, labels=targets, client=np.arange(120) % 6)
    data = DataOptions(source=str(tmp_path / "numbers.npz"))
    experiment = replace(SMALL, data=data, problem="regression", clients_per_edge=3)
    run = sfedhp.run(experiment, out=tmp_path / "one")
    text = page(tmp_path / "one")
    last = run.history[-1]
    assert f"<b>{last['gm_rmse']:.4g}</b>" in text
    assert "RMSE on test rows" in text
    assert 'id="classes"' not in text
    assert "labels" not in text.split("<table")[0].split("aria-label")[2]
    with (tmp_path / "one/clients.csv").open(newline="") as file:
        errors = {row["client"]: float(row["pm_rmse"]) for row in csv.DictReader(file)}
    worst = max(errors, key=lambda client: errors[client])
    marked = re.findall(r'aria-label="client (\d+) of edge \d[^"]*; one of the worst tenth"', text)
    assert set(marked) == {worst}
    assert f"${last['pm_rmse']:.4g}$" in latex_table(read_facts([tmp_path / "one"]))

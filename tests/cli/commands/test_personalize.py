"""`sfedhp personalize`: a newcomer's model from a run's folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from sfedhp.cli.commands import personalize
from sfedhp.core.formats import digits
from sfedhp.runs.folder import read_experiment
from sfedhp.runs.newcomers import adapt, newcomer_of, read_models
from sfedhp.runs.tensor_files import read_metadata
from tests.support.file_bytes import file_bytes


@pytest.fixture
def run(sfedhp, tiny, here):
    """The folder of a run, with the rows of somebody who was not in it beside."""
    assert sfedhp("run", *tiny, "--out", "run").exit_code == 0
    random = np.random.default_rng(5)
    labels = np.arange(30) % 2
    np.savez("newcomer.npz", inputs=random.normal(size=(30, 4)) + 2 * np.eye(4)[labels], labels=labels)
    return here / "run"


def test_the_model_is_written_and_its_gain_is_printed(sfedhp, run):
    result = sfedhp("personalize", "run", "data.source=newcomer.npz", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["model"] == "run/newcomers/newcomer.safetensors"
    assert (found["rows"], found["test_rows"]) == (22, 8)
    assert found["losses"].keys() == {"global", "edge-0", "edge-1"}
    experiment = read_experiment(run)
    newcomer = newcomer_of(experiment, "newcomer.npz")
    expected = adapt(replace(experiment, batch_size=0), read_models(run, (4,)), newcomer)
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
        (
            ["run", "data.source=newcomer.npz", "rounds=5"],
            "rounds has no effect here: set only data.source, data.test_share, batch_size,",
        ),
        (["run", "data.source=absent.npz"], "There is no file absent.npz"),
        (["run", "newcomer.npz"], "newcomer.npz is not of the form KEY=VALUE: give the newcomer's rows as"),
        (["nowhere", "data.source=newcomer.npz"], "nowhere holds no run"),
        *(
            (
                ["run", "data.source=newcomer.npz", f"{key}={method}"],
                "The run in run used sfedhp, and a newcomer takes the steps of that method: leave "
                f"algorithm={method} out.",
            )
            for key, method in (
                ("algorithm", "pfedgp"),
                ("algorithm", "heurfedamp"),
                ("algorithm.name", "fedavg"),
            )
        ),
        (["run", "data.source=newcomer.npz", "algorithm=fedprix"], "did you mean fedprox?"),
        (["run", "data.source=newcomer.npz", "--start", "edge-9"], "There is no model 'edge-9'"),
        (["run", "data.source=newcomer.npz", "algorithm.personal_steps=0"], "personal_steps"),
        (
            ["run", "data.source=newcomer.npz", "--out", "newcomer.npz/own"],
            "cannot be written to newcomer.npz/own",
        ),
        (["run", "data.source=newcomer.npz", "algorithm.personal_rate=1e12"], "The steps diverge"),
        (["run", "data.source=newcomer.npz", "--out", ""], "--out is empty"),
        (["run", "data.source=newcomer.npz", "--out", "run"], "'run', a folder: choose another file"),
        (
            ["run", "data.source=newcomer.npz", "--out", "run/models/global.safetensors"],
            "where the run keeps its own models",
        ),
        (
            ["run", "data.source=newcomer.npz", "--out", "run/models/edge-9.safetensors"],
            "where the run keeps its own models",
        ),
        (
            ["run", "data.source=newcomer.npz", "--out", "newcomer.npz"],
            "exists and is not a model, so it is not replaced",
        ),
        (
            ["run", "data.source=newcomer.npz", "--out", "run/config.toml"],
            "exists and is not a model, so it is not replaced",
        ),
    ],
)
def test_bad_input_is_one_sentence(sfedhp, run, here, words, sentence):
    before = file_bytes(here)
    result = sfedhp("personalize", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert file_bytes(here) == before


def test_an_earlier_model_is_replaced_with_a_note(sfedhp, run):
    base = ["personalize", "run", "data.source=newcomer.npz", "--out", "run/own.safetensors"]
    first = sfedhp(*base)
    assert first.exit_code == 0
    assert "replaced" not in first.stderr
    before = load_file("run/own.safetensors")
    again = sfedhp(*base, "algorithm.personal_steps=1")
    assert again.exit_code == 0
    note = "run/own.safetensors held a model already, which is replaced: to keep both, choose another file"
    assert note in again.stderr
    after = load_file("run/own.safetensors")
    assert any(not before[name].equal(after[name]) for name in before)


def test_another_newcomer_with_the_same_file_name_replaces_the_first_with_a_note(sfedhp, run, here):
    (here / "other").mkdir()
    (here / "newcomer.npz").rename(here / "other/newcomer.npz")
    words = ["personalize", "run", "data.source=other/newcomer.npz"]
    assert "replaced" not in sfedhp(*words).stderr
    note = "run/newcomers/newcomer.safetensors held a model already, which is replaced: to keep both, name"
    assert note in sfedhp(*words, "--json").stderr


def test_lines_are_aligned_below_long_names_of_edges(capsys, run):
    newcomer = newcomer_of(read_experiment(run), "newcomer.npz")
    own = adapt(read_experiment(run), read_models(run, (4,)), newcomer)
    own = replace(own, losses={"edge-Sankt_Anna": 0.5, **own.losses})
    personalize._print(own, Path("own.safetensors"), False, False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "model           own.safetensors"
    assert len(lines) >= 7
    assert all(line[15] == " " and line[16] != " " for line in lines), lines


def test_other_rates_are_reported(sfedhp, run):
    base = ["personalize", "run", "data.source=newcomer.npz"]
    plain = sfedhp(*base).stdout
    assert "overshoot" not in plain
    assert "raise the loss" not in plain
    given = sfedhp(*base, "algorithm.personal_rate=0.5").stdout
    assert "rates      / " in given
    assert ": with the given rates the steps overshoot on these rows" in given
    assert "run's own" not in given
    config = run / "config.toml"
    text = config.read_text()
    assert "personal_rate = 0.05" in text
    config.write_text(text.replace("personal_rate = 0.05", "personal_rate = 0.5"))
    for more in ([], ["algorithm=sfedhp"], ["algorithm.local_rate=0.1"]):  # of which none changes a rate
        assert ": with the run's own rates the steps overshoot on these rows" in sfedhp(*base, *more).stdout


def test_the_runs_own_method_may_be_named(sfedhp, run):
    base = ["personalize", "run", "data.source=newcomer.npz", "--json", "--no-report"]
    plain = sfedhp(*base)
    (run / "newcomers/newcomer.safetensors").unlink()  # else a note says that it is replaced
    named = sfedhp(*base, "algorithm=sfedhp")
    assert (named.exit_code, named.stdout, named.stderr) == (0, plain.stdout, "")


def test_a_key_that_the_runs_method_does_not_have_is_left_out_with_a_word(sfedhp, tiny, run):
    base = ["personalize", "run", "data.source=newcomer.npz", "--json", "--no-report"]
    plain = sfedhp(*base)
    (run / "newcomers/newcomer.safetensors").unlink()  # else a note says that it is replaced
    more = sfedhp(*base, "algorithm.local_steps=3")
    assert (more.exit_code, more.stdout, plain.stderr) == (0, plain.stdout, "")
    assert more.stderr.startswith("algorithm.local_steps is ignored: it is a key of fedavg, hierfavg, ")
    assert more.stderr.endswith(", not of sfedhp.\n")
    assert sfedhp("run", *tiny, "algorithm=fedavg", "--out", "other").exit_code == 0
    words = ["data.source=newcomer.npz", "algorithm.local_steps=3"]
    assert sfedhp("personalize", "other", *words).stderr == ""


def test_one_row_is_one_row(sfedhp, run):
    np.savez("single.npz", inputs=np.eye(4)[:2], labels=np.arange(2), test=np.array([False, True]))
    said = sfedhp("personalize", "run", "data.source=single.npz").stdout
    assert "on 1 training row" in said
    assert "% of 1 test row\n" in said
    assert "1 training rows" not in said


def test_sparsity_that_costs_fit_is_reported(sfedhp, run):
    fit = ["algorithm.personal_steps=500", "algorithm.client_proximity=0.01", "algorithm.client_sparsity=0"]
    base = ["personalize", "run", "data.source=newcomer.npz"]
    assert sfedhp(*base, *fit, "--out", "fit.safetensors").exit_code == 0
    for path in (run / "models").glob("*.safetensors"):
        path.write_bytes(Path("fit.safetensors").read_bytes())
    sparse = ["algorithm.client_sparsity=50", "algorithm.smoothing=1", "algorithm.personal_rate=0.01"]
    words = [*base, *sparse, "algorithm.client_proximity=0.1"]
    assert (
        "the steps raise the loss on these rows, at any lower rate; the sparsity penalty can cause this\n"
        in (sfedhp(*words).stdout)
    )
    found = json.loads(sfedhp(*words, "--json").stdout)
    assert found["loss"] > found["losses"][found["start"]]
    assert found["halvings"] == 0


NORMALIZED = """
from torch import nn


def make(shape, classes):
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, classes))
"""


def test_sparsity_is_not_blamed_where_there_is_none(sfedhp, tiny, here):
    (here / "own_normalized.py").write_text(NORMALIZED)
    assert sfedhp("run", *tiny, "model.name=own_normalized:make", "rounds=20", "--out", "run").exit_code == 0
    # Rows of one class differ from the others' in their mean alone, which the running statistics take away
    # with the steps, at any rate.
    rows = np.random.default_rng(5).normal(size=(40, 4)) + 4 * np.eye(4)[0]
    np.savez("alike.npz", inputs=rows, labels=np.zeros(40, int))
    words = ["algorithm.personal_rate=1e-9", "algorithm.personal_steps=5"]
    said = sfedhp("personalize", "run", "data.source=alike.npz", *words).stdout
    assert "the steps raise the loss on these rows, at any lower rate\n" in said
    assert "sparsity" not in said


def write_table(path, rows, seed, targets=("price",)):
    random = np.random.default_rng(seed)
    size, age = random.normal(100, 20, rows), random.integers(0, 60, rows)
    kind = np.where(age > 30, "old", "new")
    values = {"price": 3000 * size - 500 * age, "rent": 12 * size + age}
    lines = [",".join(("size", "age", "kind", *targets))]
    lines += [
        ",".join(map(str, (size[row], age[row], kind[row], *(values[name][row] for name in targets))))
        for row in range(rows)
    ]
    Path(path).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("target", ["price", "[price,rent]"])
def test_a_newcomer_with_a_table_of_numbers(sfedhp, here, target):
    names = tuple(target.strip("[]").split(","))
    write_table("houses.csv", 80, 0, names)
    write_table("newcomer.csv", 40, 1, names)
    words = ["edges=2", "clients_per_edge=2", "rounds=2", "model.name=mlr", "problem=regression"]
    result = sfedhp("run", "data.source=houses.csv", f"data.target={target}", *words, "--out", "run")
    assert result.exit_code == 0, result.stderr
    result = sfedhp("personalize", "run", "data.source=newcomer.csv", "algorithm.personal_steps=50", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["metric"] == "rmse"
    assert found["after"] < found["before"]
    assert found["before"] > 1000  # in the unit of the target
    metadata = json.loads(read_metadata(Path(found["model"]))["sfedhp"])
    assert metadata["metrics"] == {"rmse": found["after"], "test_rows": 10}
    said = sfedhp("personalize", "run", "data.source=newcomer.csv", "algorithm.personal_steps=50").stdout
    assert f"before     RMSE {digits(found['before'], 4)} on 10 test rows\n" in said
    predicted = sfedhp("predict", "--model", found["model"], "--data", "newcomer.csv")
    assert predicted.exit_code == 0, predicted.stderr


def test_the_page_shows_newcomers_and_a_worse_model_is_not_kept(sfedhp, run):
    result = sfedhp("personalize", "run", "data.source=newcomer.npz")
    assert result.exit_code == 0, result.output
    assert "Page: run/report.html" in result.stdout
    assert "kept" not in result.stdout
    # Training rows whose labels are exchanged: what fits them makes the test rows worse.
    random = np.random.default_rng(5)
    labels = np.arange(60) % 2
    test = np.arange(60) >= 40
    inputs = random.normal(size=(60, 4)) + 4 * np.eye(4)[labels]
    np.savez("odd.npz", inputs=inputs, labels=np.where(test, labels, 1 - labels), test=test)
    words = ["data.source=odd.npz", "algorithm.personal_steps=300", "algorithm.client_proximity=0.01"]
    result = sfedhp("personalize", "run", *words)
    assert result.exit_code == 0, result.output
    known = json.loads((run / "newcomers" / "odd.json").read_text())
    assert known["kept"] == "start"
    assert f"kept       {known['start']}: the steps made it worse on the test rows" in result.stdout
    saved, start = run / "newcomers" / "odd.safetensors", run / "models" / f"{known['start']}.safetensors"
    for name, value in load_file(start).items():
        assert load_file(saved)[name].equal(value)
    card = json.loads(read_metadata(saved)["sfedhp"])
    assert card["metrics"]["accuracy"] == known["before"] > known["after"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Clients that joined after training" in page
    figures = f"odd: before {known['before']:.2f} %, after {known['after']:.2f} %"
    assert f"{figures}, from {known['start']}, 20 test rows; its own model was worse" in page
    (run / "newcomers" / "torn.json").write_text("{")
    assert sfedhp("report", "run").exit_code == 0
    for path in (run / "newcomers").glob("*.json"):
        path.unlink()
    assert sfedhp("report", "run").exit_code == 0
    assert "Clients that joined" not in (run / "report.html").read_text(encoding="utf-8")

"""How each client and each class is served, against the history and against the saved models."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sfedhp
from sfedhp.algorithms import FedAvg, HeurFedAMP, HierFAVG, PFedGP, PFedMe, SFedHP
from sfedhp.config import EvaluationOptions
from sfedhp.core.errors import InputError
from sfedhp.data import from_arrays
from sfedhp.nn.problems import KINDS
from sfedhp.runs.score_files import SCORE_FILES, read_scores
from sfedhp.runs.sweep import sweep
from tests.support.json_lines import without_seconds
from tests.support.short_runs import SMALL, after, remove_checksums_of_scores

RAGGED = replace(SMALL, edges=2, clients_per_edge=4)
METHODS = {
    "sfedhp": SFedHP(edge_rounds=2),
    "hierfavg": HierFAVG(edge_rounds=2, local_steps=2),
    "fedavg": FedAvg(local_steps=2),
    "pfedme": PFedMe(local_rounds=2),
    "heurfedamp": HeurFedAMP(local_steps=2),
    "pfedgp": PFedGP(support_rows=12, chains=2, gibbs_steps=1),
}


def ragged(without=(1, 6)):
    """Eight clients of very different sizes, of which some leave their seats empty."""
    generator = np.random.default_rng(3)
    client = np.repeat(np.arange(8), [12, 40, 16, 90, 20, 13, 70, 33])
    labels = generator.integers(0, 3, len(client))
    inputs = generator.normal(size=(len(client), 4)) + labels[:, None]
    federation, _ = from_arrays(inputs, labels, client=client, edges=2, clients_per_edge=4, seed=0)
    return federation.without(without)


def scores_of(folder):
    scores = read_scores(folder)
    assert scores is not None
    return scores


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def weighted(clients, column):
    """The mean over clients, weighted by test rows; None where no client has the figure."""
    known = [(row[column], row["test_rows"]) for row in clients if row[column] is not None]
    return sum(value * rows for value, rows in known) / sum(rows for _, rows in known) if known else None


def agrees_with_the_history(folder, row):
    scores = scores_of(folder)
    assert scores.round == row["round"]
    for kind in KINDS:
        mean = weighted(scores.clients, kind)
        assert (mean is None) == (kind not in row) == (kind not in scores.confusion)
        if mean is None:
            continue
        assert mean == pytest.approx(row[kind], abs=1e-9)
        matrix = np.array(scores.confusion[kind])
        assert 100 * matrix.trace() / matrix.sum() == pytest.approx(row[kind], abs=1e-9)
        known = [each for each in scores.classes if each["test_rows"]]
        assert weighted(known, kind) == pytest.approx(row[kind], abs=1e-9)
        assert matrix.sum(1).tolist() == [each["test_rows"] for each in scores.classes]
    used = next(kind for kind in KINDS if kind in row)
    assert weighted(scores.clients, "loss") == pytest.approx(row[f"{used}_loss"], abs=1e-9)
    return scores


@pytest.mark.parametrize("method", METHODS)
def test_the_means_over_clients_are_the_history(tmp_path, method):
    experiment = replace(RAGGED, algorithm=METHODS[method])
    run = sfedhp.run(experiment, data=ragged(), out=tmp_path / "run")
    scores = agrees_with_the_history(tmp_path / "run", run.history[-1])
    assert len(scores.clients) == 6
    assert len({row["test_rows"] for row in scores.clients}) > 3


@pytest.mark.parametrize("method", ["sfedhp", "fedavg"])
def test_a_row_is_that_of_the_clients_own_model_and_rows(tmp_path, method):
    federation = ragged()
    run = sfedhp.run(replace(RAGGED, algorithm=METHODS[method]), data=federation, out=tmp_path / "run")
    rows = table(tmp_path / "run/clients.csv")
    seats = [(edge, seat) for edge, seat in np.ndindex(2, 4) if federation.seats[edge, seat] >= 0]
    assert [(int(row["edge"]), int(row["seat"])) for row in rows] == seats
    for row, (edge, seat) in zip(rows, seats, strict=True):
        client = federation.seats[edge, seat]
        held, test = federation.train[client], federation.test[client]
        assert (row["client"], row["rows"], row["test_rows"]) == tuple(
            map(str, (client, len(held), len(test)))
        )
        own, counts = np.unique(federation.labels[held], return_counts=True)
        assert row["labels"] == " ".join(map(str, own))
        assert row["label_rows"] == " ".join(map(str, counts))
        inputs = torch.from_numpy(federation.scaled(test, "float64"))
        labels = torch.from_numpy(federation.labels[test])
        models = {
            "pm": run.models.client_model(edge, seat) if method == "sfedhp" else None,
            "em": run.edge_models[edge],
            "gm": run.global_model,
        }
        for kind, model in models.items():
            if model is None:
                assert row[kind] == ""
                continue
            predicted = model(inputs).argmax(-1)
            assert float(row[kind]) == pytest.approx(100 * (predicted == labels).double().mean().item())
        used = next(model for model in models.values() if model is not None)
        loss = torch.nn.functional.cross_entropy(used(inputs), labels).item()
        assert float(row["loss"]) == pytest.approx(loss)


@pytest.mark.parametrize("statistics", ["averaged", "local"])
def test_batch_norm_uses_the_statistics_of_the_history(tmp_path, statistics):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    experiment = replace(RAGGED, evaluation=EvaluationOptions(norm_statistics=statistics))
    run = sfedhp.run(experiment, data=ragged(), model=model, out=tmp_path / "run")
    assert run.history[-1]["gm_averaged"] != run.history[-1]["gm_local"]
    agrees_with_the_history(tmp_path / "run", run.history[-1])


def test_the_confusion_matrix_counts_true_classes_in_rows(tmp_path):
    federation = ragged()
    run = sfedhp.run(replace(RAGGED, algorithm=METHODS["fedavg"]), data=federation, out=tmp_path / "run")
    held = np.concatenate(federation.test)
    assert run.global_model is not None
    with torch.no_grad():
        predicted = run.global_model(torch.from_numpy(federation.scaled(held, "float64"))).argmax(-1).numpy()
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (federation.labels[held], predicted), 1)
    content = json.loads((tmp_path / "run/confusion.json").read_text())
    assert content["checksums"].keys() == {"clients.csv", "classes.csv"}
    assert content == content | {"round": 3, "gm": expected.tolist()}
    assert content.keys() == {"round", "gm", "checksums", "checksum"}
    assert not np.array_equal(expected, expected.T)
    classes = table(tmp_path / "run/classes.csv")
    assert [row["class"] for row in classes] == ["0", "1", "2"]
    assert [float(row["gm"]) for row in classes] == pytest.approx(
        (100 * expected.diagonal() / expected.sum(1)).tolist()
    )


@pytest.mark.parametrize("method", ["sfedhp", "fedavg"])
def test_each_run_of_a_stack_has_the_files_it_has_alone(tmp_path, method):
    experiments = [replace(RAGGED, algorithm=METHODS[method], seed=seed) for seed in range(3)]
    folders = [tmp_path / f"stacked-{seed}" for seed in range(3)]
    outcomes = sweep(experiments, folders, data=ragged(), at_once=3)
    for experiment, folder, outcome in zip(experiments, folders, outcomes, strict=True):
        agrees_with_the_history(folder, outcome.run.history[-1])
        alone = tmp_path / f"alone-{experiment.seed}"
        sfedhp.run(experiment, data=ragged(), out=alone)
        for name in ("confusion.json", "classes.csv"):
            assert (folder / name).read_bytes() == (alone / name).read_bytes()
        for one, other in zip(scores_of(folder).clients, scores_of(alone).clients, strict=True):
            assert one == pytest.approx(other, abs=1e-9)


def test_runs_of_a_stack_with_other_rows_each(tmp_path):
    """Each seed divides the embedded images in its own way."""
    experiments = [replace(SMALL, seed=seed) for seed in range(2)]
    folders = [tmp_path / str(seed) for seed in range(2)]
    for folder, outcome in zip(folders, sweep(experiments, folders, at_once=2), strict=True):
        agrees_with_the_history(folder, outcome.run.history[-1])


def test_a_run_of_a_stack_that_diverges_has_the_scores_of_its_last_finite_models(tmp_path):
    wild, calm = (replace(SMALL, algorithm=SFedHP(edge_rounds=2, edge_rate=rate)) for rate in (1e200, 0.05))
    folders = [tmp_path / "wild", tmp_path / "calm"]
    first, second = sweep([wild, calm], folders)
    assert (bool(first.error), second.error) == (True, None)
    agrees_with_the_history(folders[1], second.run.history[-1])
    before = scores_of(folders[0])
    assert before.round < 3
    alone = tmp_path / "alone"
    with pytest.raises(sfedhp.DivergenceError):
        sfedhp.run(wild, out=alone)
    assert scores_of(alone).confusion == before.confusion


def test_a_stopped_run_has_the_files_and_a_resumed_one_those_of_its_end(tmp_path):
    stopped = sfedhp.run(SMALL, out=tmp_path / "run", stop=after(2))
    agrees_with_the_history(tmp_path / "run", stopped.history[-1])
    assert scores_of(tmp_path / "run").round == 2
    resumed = sfedhp.resume(tmp_path / "run")
    agrees_with_the_history(tmp_path / "run", resumed.history[-1])
    sfedhp.run(SMALL, out=tmp_path / "whole")
    for name in SCORE_FILES:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_that_was_stopped_between_evaluations_has_the_scores_of_its_models(tmp_path):
    experiment = replace(SMALL, evaluation=EvaluationOptions(every=3))
    run = sfedhp.run(experiment, out=tmp_path / "run", stop=after(2))
    assert not any("pm" in row for row in run.history)
    whole = sfedhp.run(replace(SMALL, rounds=2))
    agrees_with_the_history(tmp_path / "run", whole.history[-1])


@pytest.mark.parametrize("method", ["sfedhp", "fedavg"])
def test_clients_without_test_rows_have_no_figures(tmp_path, method):
    federation = ragged()
    test = tuple(rows[:0] if client == 2 else rows for client, rows in enumerate(federation.test))
    federation = replace(federation, test=test)
    run = sfedhp.run(replace(RAGGED, algorithm=METHODS[method]), data=federation, out=tmp_path / "run")
    scores = agrees_with_the_history(tmp_path / "run", run.history[-1])
    without = next(row for row in scores.clients if row["client"] == 2)
    assert [without[name] for name in ("test_rows", *KINDS, "loss")] == [0, None, None, None, None]


def test_scores_change_neither_the_history_nor_the_models(tmp_path):
    """With a folder the scores are computed, without one they are not."""
    written, plain = sfedhp.run(SMALL, out=tmp_path / "run"), sfedhp.run(SMALL)
    assert without_seconds(written.history) == without_seconds(plain.history)
    one, other = written.global_model, plain.global_model
    assert one is not None
    assert other is not None
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("confusion.json", "{"),
        ("confusion.json", "[]"),
        ("confusion.json", "{}"),
        ("clients.csv", "client,edge\n0,0\n"),
        ("classes.csv", "class,test_rows,pm,em,gm\n0,x,,,\n"),
    ],
)
def test_damaged_files_are_refused_with_what_to_do(tmp_path, name, content):
    sfedhp.run(SMALL, out=tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(InputError, match=r"is damaged.* Delete .* and `sfedhp resume"):
        read_scores(tmp_path / "run")


def test_a_folder_of_an_earlier_version_has_no_rows_of_labels(tmp_path):
    sfedhp.run(RAGGED, data=ragged(), out=tmp_path / "run")
    path = tmp_path / "run/clients.csv"
    lines = [line.rpartition(",")[0] for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    remove_checksums_of_scores(tmp_path / "run")
    scores = read_scores(tmp_path / "run")
    assert scores is not None
    assert {row["label_rows"] for row in scores.clients} == {None}


@pytest.mark.parametrize("name", ["clients.csv", "classes.csv", "confusion.json"])
def test_a_changed_digit_is_found(tmp_path, name):
    sfedhp.run(SMALL, out=tmp_path / "run")
    path = tmp_path / "run" / name
    text = path.read_text()
    digits = [place for place, letter in enumerate(text) if letter in "12345678"]
    path.write_text(text[: digits[0]] + "9" + text[digits[0] + 1 :])
    with pytest.raises(InputError, match=f"{name} is damaged: its content does not match its checksum"):
        read_scores(tmp_path / "run")

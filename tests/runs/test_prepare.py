"""The data that users bring to a run, and how many of its clients may be drawn."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import TensorDataset

import sfedhp
from sfedhp import InputError
from sfedhp.algorithms import FedAvg
from sfedhp.cli import main
from sfedhp.data import DataOptions
from tests.support.invoking import invoke
from tests.support.short_runs import SMALL, arrays


def test_arrays_from_python(tmp_path):
    experiment = replace(SMALL, data=DataOptions())
    run = sfedhp.run(experiment, data=arrays(), out=tmp_path / "a")
    assert run.experiment.data.source == "arrays"
    assert run.global_model is not None
    assert run.global_model.get_parameter("head.weight").shape == (3, 4)
    with pytest.raises(InputError, match="came from Python"):
        sfedhp.resume(tmp_path / "a")
    assert sfedhp.resume(tmp_path / "a", data=arrays()).finished


@pytest.mark.parametrize("path", ["my.npz", Path("my.npz")])
def test_a_path_is_a_source_and_not_data(path):
    with pytest.raises(InputError, match=r"name the file with sfedhp.DataOptions\(source='my.npz'\)"):
        sfedhp.run(SMALL, data=path)


def test_a_dataset_and_a_federation_from_python():
    held = arrays()
    dataset = TensorDataset(torch.tensor(held["inputs"]), torch.tensor(held["labels"]))
    experiment = replace(SMALL, data=DataOptions(partition="iid"))
    assert sfedhp.run(experiment, data=dataset).finished
    prepared = sfedhp.runs.prepare.prepare(replace(SMALL, data=DataOptions()), held)
    run = sfedhp.run(replace(SMALL, data=DataOptions()), data=prepared.federation)
    assert run.finished


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"inputs": None}, "the data has no array `inputs` (it holds labels, client): add it."),
        ({"labels": None}, "the data has no array `labels` (it holds inputs, client): add it."),
        (
            {"client": None, "clients": np.arange(60) % 6},
            "the data holds an array `clients`, but the known ones are `inputs`, `labels`, `client`, "
            "`edge` and `test`: did you mean `client`?",
        ),
        ({3: np.arange(60)}, "the data holds an array `3`, but the known ones are"),
    ],
)
def test_arrays_from_python_have_the_known_names(changes, sentence):
    held = {name: value for name, value in (arrays() | changes).items() if value is not None}
    with pytest.raises(InputError, match=re.escape(sentence)):
        sfedhp.run(replace(SMALL, data=DataOptions()), data=held)


@pytest.mark.parametrize(("edges", "clients_per_edge"), [(1, 3), (3, 3), (2, 2)])
def test_a_federation_from_python_must_fit_the_experiment(edges, clients_per_edge):
    federation = sfedhp.runs.prepare.prepare(SMALL).federation
    unfit = replace(SMALL, edges=edges, clients_per_edge=clients_per_edge)
    sentence = (
        f"The federation has 2 × 3 seats (edges × clients), the experiment {edges} × {clients_per_edge}: "
        f"set edges = 2 and clients_per_edge = 3."
    )
    with pytest.raises(InputError, match=re.escape(sentence)):
        sfedhp.run(unfit, data=federation)


def test_a_federation_from_python_may_have_lost_clients():
    federation = sfedhp.runs.prepare.prepare(SMALL).federation.without([2, 5])
    assert federation.seats.shape == (2, 2)
    assert sfedhp.run(replace(SMALL, rounds=1), data=federation).finished


def test_no_more_clients_are_drawn_than_there_are(tmp_path):
    experiment = replace(SMALL, rounds=1, algorithm=FedAvg(local_steps=1), sampled_clients=5)
    held = replace(experiment, data=replace(SMALL.data, held_out=1))
    sentence = r"sampled_clients = 5 is more than the clients that train, 4: lower it, or set 0 for all\."
    with pytest.raises(InputError, match=sentence):
        sfedhp.run(held, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(InputError, match=sentence):
        sfedhp.runs.prepare.prepare_stack([held, replace(held, seed=1)])
    with pytest.raises(InputError, match=sentence):
        sfedhp.run(replace(experiment, data=DataOptions()), data=arrays(clients=4))
    assert sfedhp.run(replace(held, sampled_clients=4)).finished
    assert sfedhp.run(replace(experiment, data=DataOptions()), data=arrays(clients=5)).finished


def test_a_client_without_rows_is_never_drawn():
    federation = sfedhp.runs.prepare.prepare(SMALL).federation
    none = replace(federation, train=(federation.train[0][:0], *federation.train[1:]))
    experiment = replace(SMALL, rounds=1, algorithm=FedAvg(local_steps=1), sampled_clients=6)
    with pytest.raises(InputError, match="sampled_clients = 6 is more than the clients that train, 5: lower"):
        sfedhp.run(experiment, data=none)


def test_no_more_edges_are_drawn_than_have_clients():
    federation = sfedhp.runs.prepare.prepare(SMALL).federation.without([3, 4, 5])
    assert sfedhp.run(replace(SMALL, rounds=1, sampled_edges=1), data=federation).finished
    with pytest.raises(InputError, match="sampled_edges = 2 is more than the edges that train, 1: lower"):
        sfedhp.run(replace(SMALL, sampled_edges=2), data=federation)


def test_a_comparison_says_what_is_wrong_with_the_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["data.held_out=1", "data.train_per_label=6", "model.name=mlr", "sampled_clients=18", "rounds=1"]
    sentence = "sampled_clients = 18 is more than the clients that train, 16: lower"
    first = invoke("compare", *words, "--only", "fedavg,fedprox")
    assert first.exit_code == 2
    assert f"error: {sentence}" in first.stderr
    assert not list(tmp_path.iterdir())
    later = CliRunner().invoke(
        main, ["compare", *words, "algorithm.edge_rounds=1", "--only", "sfedhp,fedavg"]
    )
    assert later.exit_code == 2
    assert f"† fedavg: {sentence}" in later.stdout.replace("\n", " ")

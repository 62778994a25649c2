import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_breast_cancer, load_wine

from sfedhp import Experiment, ModelOptions
from sfedhp.algorithms import FedAvg
from sfedhp.cli import main
from sfedhp.data import DataOptions
from sfedhp.runs.prepare import prepare
from sfedhp.theory.unscaled import unscaled_inputs

CANCER = load_breast_cancer()


def sentence(inputs: np.ndarray, labels: np.ndarray, **options: object) -> str | None:
    experiment = Experiment(edges=1, clients_per_edge=3, **options)  # type: ignore[arg-type]
    return unscaled_inputs(prepare(experiment, {"inputs": inputs, "labels": labels}))


@pytest.mark.parametrize("algorithm", [Experiment().algorithm, FedAvg()], ids=["sfedhp", "fedavg"])
def test_raw_columns_get_a_sentence_and_standardized_ones_none(algorithm) -> None:
    found = sentence(CANCER.data, CANCER.target, algorithm=algorithm)
    assert found is not None
    assert "range from 0 to 4.25e+03: steps with" in found
    assert found.endswith("set data.scale=standard, or scale the inputs yourself.")
    standard = DataOptions(scale="standard")
    assert sentence(CANCER.data, CANCER.target, algorithm=algorithm, data=standard) is None


def test_inputs_of_usual_size_and_bounded_models_get_none() -> None:
    wine = load_wine()
    scaled = (wine.data - wine.data.mean(0)) / wine.data.std(0)
    assert sentence(scaled, wine.target) is None
    assert sentence(wine.data, wine.target) is not None
    assert sentence(wine.data, wine.target, model=ModelOptions("mlr")) is None
    assert unscaled_inputs(prepare(Experiment())) is None


def test_the_commands_say_it_before_they_run(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("raw.npz", inputs=CANCER.data, labels=CANCER.target)
    words = ["data.source=raw.npz", "edges=1", "clients_per_edge=3", "rounds=1", "--json"]
    done = CliRunner().invoke(main, ["run", *words, "--out", "run"])
    assert "The inputs are not scaled and range from" in done.stderr
    assert json.loads(done.stdout)["rounds"] == 1
    done = CliRunner().invoke(main, ["run", *words, "data.scale=standard", "--out", "scaled"])
    assert "not scaled" not in done.stderr
    assert json.loads(done.stdout)["pm_last"] > 80

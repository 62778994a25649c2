"""Predictions of every problem are those of the run's own model, in the units of the data."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sfedhp
from sfedhp.serving.predict import predict
from sfedhp.serving.saved_model import read_saved_model
from tests.support.invoking import invoke

RANDOM = np.random.default_rng(6)
INPUTS = RANDOM.normal(40, 6, (90, 5))
COST = 1e5 + 3e3 * (INPUTS[:, 0] - 40) + RANDOM.normal(0, 50, 90)


def csv_of(folder: Path) -> Path:
    lines = ["a,b,c,d,e,cost"] + [
        ",".join(map(repr, [*map(float, row), float(cost)])) for row, cost in zip(INPUTS, COST, strict=True)
    ]
    path = folder / "costs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def trained(folder: Path, rounds: int, arrays: dict[str, np.ndarray], **options) -> sfedhp.Run:
    experiment = sfedhp.Experiment(rounds=rounds, edges=1, clients_per_edge=2, **options)
    return sfedhp.run(experiment, data=arrays, out=folder / "run")


def test_numbers_are_in_the_units_of_the_target(tmp_path: Path) -> None:
    source = csv_of(tmp_path)
    experiment = sfedhp.Experiment(
        rounds=40, edges=1, clients_per_edge=2, data=sfedhp.DataOptions(str(source), target="cost")
    )
    run = sfedhp.run(experiment, out=tmp_path / "run")
    saved = read_saved_model(tmp_path / "run" / "models" / "global.safetensors")
    found = predict(saved, source)
    assert found.schema.output_names == ["cost"]
    assert saved.card.metrics["rmse"] == pytest.approx(run.summary["gm_rmse_last"])
    error = float(np.sqrt(np.mean((np.array(found.values) - COST) ** 2)))
    assert error < 0.3 * COST.std()
    assert run.summary["gm_rmse_last"] < 0.4 * COST.std()
    assert found.to_csv().splitlines()[0] == "row,cost"
    words = ["predict", "--model", str(saved.path), "--data", str(source)]
    printed = json.loads(invoke(*words, "--json").stdout)
    assert printed["problem"] == "regression"
    assert printed["predictions"] == pytest.approx(found.values)
    assert "probabilities" not in printed
    done = invoke(*words, "--out", tmp_path / "out.csv")
    assert done.stdout.startswith("90 rows\n")


def test_each_label_has_its_probability(tmp_path: Path) -> None:
    labels = (INPUTS[:, :3] > 40).astype(np.int64)
    run = trained(tmp_path, 5, {"inputs": (INPUTS - 40) / 6, "labels": labels})
    found = predict(read_saved_model(tmp_path / "run" / "models" / "global.safetensors"), (INPUTS - 40) / 6)
    assert run.global_model is not None
    scores = run.global_model(torch.from_numpy((INPUTS - 40) / 6).float()).detach()
    np.testing.assert_allclose(found.outputs, scores.double().sigmoid(), rtol=1e-6)
    assert found.values[0] == [f"output {label}" for label in range(3) if found.outputs[0, label] > 0.5]
    assert found.to_csv().splitlines()[0] == "row,p(output 0),p(output 1),p(output 2)"


def test_restored_inputs_are_in_their_own_units(tmp_path: Path) -> None:
    arrays = {"inputs": INPUTS, "labels": np.zeros(90, np.int64)}
    run = trained(
        tmp_path,
        3,
        arrays,
        problem="reconstruction",
        data=sfedhp.DataOptions(scale="standard"),
        model=sfedhp.ModelOptions("mlr"),
    )
    assert run.schema is not None
    found = predict(read_saved_model(tmp_path / "run" / "models" / "global.safetensors"), INPUTS)
    assert found.outputs.shape == INPUTS.shape
    assert run.global_model is not None
    rows = torch.from_numpy(run.schema.scaling.apply(INPUTS, np.dtype("float32")))
    restored = run.schema.scaling.invert(run.global_model(rows).detach().double().numpy())
    np.testing.assert_allclose(found.outputs, restored, rtol=1e-6)

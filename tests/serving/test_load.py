import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import sfedhp
from sfedhp.data import DataOptions
from sfedhp.nn.models import ModelOptions
from sfedhp.runs.models import save_model
from sfedhp.serving.predict import predict
from sfedhp.serving.saved_model import read_saved_model

RANDOM = np.random.default_rng(2)
IMAGES: dict[str, np.ndarray] = {
    "inputs": RANDOM.integers(0, 256, (60, 1, 4, 4)).astype(np.uint8),
    "labels": np.arange(60) % 3,
    "client": np.arange(60) // 15,
}
SMALL = sfedhp.Experiment(rounds=2, edges=2, clients_per_edge=2, model=ModelOptions("dnn-small"), seed=5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> sfedhp.Run:
    folder = tmp_path_factory.mktemp("runs") / "images"
    experiment = replace(SMALL, data=DataOptions(scale="standard"))
    return sfedhp.run(experiment, data=IMAGES, out=folder)


def folder_of(run: sfedhp.Run) -> Path:
    assert run.folder is not None
    return run.folder


def scaled(run: sfedhp.Run) -> torch.Tensor:
    assert run.schema is not None
    return torch.from_numpy(run.schema.prepare("them", IMAGES["inputs"], "float32"))


def test_modules_are_those_of_the_run(trained: sfedhp.Run) -> None:
    found, rows = sfedhp.load(folder_of(trained)), scaled(trained)
    assert list(found.edge_models) == ["edge-0", "edge-1"]
    assert list(found.client_models) == [f"client-{edge}-{seat}" for edge in range(2) for seat in range(2)]
    assert torch.equal(found.prepare(IMAGES["inputs"]), rows)
    assert found.class_names == ["0", "1", "2"]
    with pytest.raises(sfedhp.InputError, match="`inputs` are float32, but the model was trained on uint8"):
        found.prepare(IMAGES["inputs"].astype(np.float32))
    pairs = [
        (found.global_model, trained.global_model),
        (found.edge_models["edge-1"], trained.edge_models[1]),
        (found.client_models["client-1-0"], trained.client_models[1][0]),
    ]
    for loaded, own in pairs:
        assert loaded is not None
        assert own is not None
        assert not loaded.training
        assert torch.equal(loaded(rows), own(rows))
    with pytest.raises(KeyError, match="there is no model 'north': the names are edge-0, edge-1"):
        found.edge_models["north"]


def test_a_file_says_what_it_holds(trained: sfedhp.Run) -> None:
    path = folder_of(trained) / "models" / "client-0-1.safetensors"
    with safe_open(path, "pt") as file:
        card = json.loads(file.metadata()["sfedhp"])
    assert (card["tier"], card["name"], card["model"]["name"]) == ("client", "client-0-1", "dnn-small")
    assert card["run"] == {
        "algorithm": "sfedhp",
        "seed": 5,
        "round": 2,
        "rounds": 2,
        "version": sfedhp.__version__,
    }
    assert card["schema"]["scaling"]["kind"] == "standard"
    assert (card["schema"]["shape"], card["schema"]["classes"]) == ([1, 4, 4], 3)
    assert len(json.dumps(card)) < 2000
    # The accuracy is that of the client's own model on its test rows.
    lines = (folder_of(trained) / "clients.csv").read_text().splitlines()
    row = dict(zip(lines[0].split(","), lines[2].split(","), strict=True))
    assert card["metrics"]["accuracy"] == pytest.approx(float(row["pm"]))
    assert card["metrics"]["test_rows"] == int(row["test_rows"])
    whole = read_saved_model(path.with_name("global.safetensors")).card.metrics
    assert whole["accuracy"] == pytest.approx(trained.history[-1]["gm"])


def test_predictions_are_the_modules_and_have_names(trained: sfedhp.Run) -> None:
    model = trained.global_model
    assert model is not None
    found = predict(read_saved_model(folder_of(trained) / "models" / "global.safetensors"), IMAGES["inputs"])
    scores = model(scaled(trained))
    assert found.outputs.argmax(-1).tolist() == scores.argmax(-1).tolist()
    np.testing.assert_allclose(found.outputs, scores.double().softmax(-1).detach(), rtol=1e-12)
    assert set(found.values) <= {"0", "1", "2"}


def own_module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def test_a_module_from_python_must_be_given_again(tmp_path: Path) -> None:
    run = sfedhp.run(SMALL, data=IMAGES, model=own_module(), out=tmp_path / "own")
    with pytest.raises(sfedhp.InputError, match=r"is a module from Python.*give it.*model="):
        sfedhp.load(tmp_path / "own").global_model  # noqa: B018
    found = sfedhp.load(tmp_path / "own", model=own_module).global_model
    assert found is not None
    assert run.global_model is not None
    assert torch.equal(found(torch.ones(1, 16)), run.global_model(torch.ones(1, 16)))
    with pytest.raises(sfedhp.InputError, match="are not those of the model"):
        sfedhp.load(tmp_path / "own", model=nn.Linear(3, 3)).global_model  # noqa: B018


def test_gaussian_processes_are_not_predicted_with(tmp_path: Path) -> None:
    sfedhp.run(replace(SMALL, algorithm=sfedhp.PFedGP(local_steps=1)), data=IMAGES, out=tmp_path / "gp")
    models = tmp_path / "gp" / "models"
    with pytest.raises(sfedhp.InputError, match="pfedgp predicts with more than the network in"):
        predict(read_saved_model(models / "client-0-0.safetensors"), IMAGES["inputs"])


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sfedhp.InputError, match="is not a folder: give the folder of a run"):
        sfedhp.load(tmp_path / "none")
    with pytest.raises(sfedhp.InputError, match="has no models"):
        sfedhp.load(tmp_path)
    with pytest.raises(sfedhp.InputError, match="There is no file"):
        read_saved_model(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"something else")
    with pytest.raises(sfedhp.InputError, match="is not a whole safetensors file"):
        read_saved_model(tmp_path / "bad.safetensors")
    save_model(tmp_path / "old.safetensors", own_module(), 3)
    with pytest.raises(sfedhp.InputError, match="does not say which model it holds"):
        read_saved_model(tmp_path / "old.safetensors")


def test_outputs_in_the_units_of_the_data_and_a_short_name(trained: sfedhp.Run) -> None:
    found = sfedhp.load(folder_of(trained))
    assert repr(found) == "LoadedModels(1 global model, 2 edge models, 4 client models)"
    assert found.global_model is not None
    outputs = found.global_model(found.prepare(IMAGES["inputs"]))
    torch.testing.assert_close(
        torch.from_numpy(found.in_units(outputs)), outputs.detach().double().softmax(-1)
    )

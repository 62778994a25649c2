"""Exported models give the outputs of torch, through onnxruntime alone in a process that has no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sfedhp
from sfedhp.nn.presets import MODELS
from sfedhp.serving import export
from sfedhp.serving.export import export_onnx
from sfedhp.serving.predict import predict, predict_inputs
from sfedhp.serving.saved_model import read_saved_model
from tests.support.invoking import invoke

RANDOM = np.random.default_rng(3)
WITHOUT_TORCH = """
import json, pathlib, sys
sys.modules["torch"] = sys.modules["sfedhp"] = None  # an import of them fails
import numpy as np, onnxruntime
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.onnx")):
    known = np.load(path.with_suffix(".npz"))
    card = json.loads(path.with_suffix(".json").read_text())
    session = onnxruntime.InferenceSession(path)
    rows = known["rows"].astype(card["input"]["type"])
    found = session.run([card["output"]["name"]], {card["input"]["name"]: rows})[0]
    print(json.dumps([path.stem, float(np.abs((found - known["outputs"]) / known["unit"]).max())]))
"""


class Everything(nn.Module):
    """Batch norm, dropout and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.lstm = nn.LSTM(3, 5, batch_first=True)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(5, 3)

    def forward(self, series: Tensor) -> Tensor:
        states = self.lstm(self.norm(series.transpose(1, 2)).transpose(1, 2))[0]
        last: Tensor = self.head(self.drop(states[:, -1]))
        return last


def differences(folder: Path) -> dict[str, float]:
    """The largest difference of each exported model from the outputs beside it."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def kept(path: Path, out: Path, rows: np.ndarray, model: Any = None, unit: float = 1.0) -> None:
    """Export a model, with what torch predicts for these rows beside it."""
    saved = read_saved_model(path, model)
    export_onnx(saved, out, rows)
    np.savez(out.with_suffix(".npz"), rows=rows, outputs=predict(saved, rows).outputs, unit=unit)


def trained(folder: Path, arrays: dict[str, np.ndarray], module: Any = None, **options: Any) -> Path:
    experiment = sfedhp.Experiment(rounds=1, edges=2, clients_per_edge=2, batch_size=6, **options)
    sfedhp.run(experiment, data=arrays, model=module, out=folder)
    return folder / "models"


def series(rows: int) -> dict[str, np.ndarray]:
    return {
        "inputs": RANDOM.normal(3, 2, (rows, 4, 3)),
        "labels": np.arange(rows) % 3,
        "client": np.arange(rows) // (rows // 4),
    }


@pytest.mark.parametrize(
    "names",
    [
        ["client-1-0"],
        pytest.param(["client-0-0", "client-0-1", "edge-0", "edge-1", "global"], marks=pytest.mark.slow),
    ],
    ids=["client", "others"],
)
def test_batch_norm_dropout_and_an_lstm(tmp_path: Path, names: list[str]) -> None:
    models = trained(tmp_path / "run", series(80), Everything, data=sfedhp.DataOptions(scale="standard"))
    rows = RANDOM.normal(3, 2, (30, 4, 3))
    for name in names:
        kept(models / f"{name}.safetensors", tmp_path / f"{name}.onnx", rows, Everything)
    found = differences(tmp_path)
    assert list(found) == names
    assert max(found.values()) < 1e-5


def test_tables_keep_what_is_missing_and_numbers_their_units(tmp_path: Path) -> None:
    lines = ["size,kind,price"]
    for row in range(60):
        size = RANDOM.normal(1e6, 20)
        lines.append(f"{'' if row % 9 == 0 else size},{'ab'[row % 2]},{2e4 + 90 * (size - 1e6)}")
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def command(*words: object) -> str:
        result = invoke(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    run, source = tmp_path / "run", f"data.source={tmp_path / 'all.csv'}"
    few = ["rounds=2", "edges=1", "clients_per_edge=2", "model.name=mlr", "--no-report"]
    command("run", source, "data.target=price", *few, "--out", run)
    model = run / "models" / "client-0-1.safetensors"
    printed = json.loads(command("export", "--model", model, "--onnx", tmp_path / "own.onnx", "--json"))
    assert printed["difference"] < 1e-5
    assert printed["rows"] > 10
    card = json.loads((tmp_path / "own.json").read_text(encoding="utf-8"))
    assert card["input"] == {
        "name": "rows",
        "type": "float64",
        "shape": ["rows", 4],
        "names": ["size", "size missing", "kind = a", "kind = b"],
    }
    assert card["output"] == {"name": "values", "names": ["price"]}
    assert (card["tier"], card["name"]) == ("client", "client-0-1")
    # By hand, as a program without this package would: NaN is a number that is missing.
    rows = np.array([[np.nan, 1, 1, 0], [1_000_013.5, 0, 0, 1]])
    csv = "size,kind\n,a\n1000013.5,b\n"
    (tmp_path / "new.csv").write_text(csv, encoding="utf-8")
    outputs = predict(read_saved_model(model), tmp_path / "new.csv").outputs
    np.savez(tmp_path / "own.npz", rows=rows, outputs=outputs, unit=1800.0)
    assert differences(tmp_path)["own"] < 1e-5


def test_a_file_that_predicts_otherwise_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = trained(tmp_path / "run", series(80), model=sfedhp.ModelOptions("mlr"))
    saved = read_saved_model(models / "global.safetensors")

    def other(*given: Any) -> Any:
        found = predict_inputs(*given)
        found.outputs[-1, 0] += 2e-5
        return found

    monkeypatch.setattr(export, "predict_inputs", other)
    with pytest.raises(sfedhp.InputError, match=r"not kept: its predictions differ .* by 2.0e-05 on 5 rows"):
        export_onnx(saved, tmp_path / "own.onnx", series(5)["inputs"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


class Undecided(nn.Module):
    """Its forward looks at the values of the rows, so that there is no one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, rows: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() or rows.sum() > 0:
            return self.layer(rows.flatten(1))
        return self.layer(-rows.flatten(1))


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = trained(tmp_path / "run", series(80), Undecided)
    saved = read_saved_model(models / "global.safetensors", Undecided)
    rows = series(5)["inputs"]
    with pytest.raises(sfedhp.InputError, match=r"must end in \.onnx"):
        export_onnx(saved, tmp_path / "own", rows)
    with pytest.raises(sfedhp.InputError, match=r"no rows to check .*data came from Python.*--data"):
        export_onnx(saved, tmp_path / "own.onnx")
    with pytest.raises(sfedhp.InputError, match=r"as ONNX \(GuardOn.*layers that torch\.onnx"):
        export_onnx(saved, tmp_path / "own.onnx", rows)
    with pytest.raises(sfedhp.InputError, match=r"There is no folder .*none: make it"):
        export_onnx(saved, tmp_path / "none" / "own.onnx", rows)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(sfedhp.InputError, match=r"pip install 'sfedhp\[onnx\]'"):
        export_onnx(saved, tmp_path / "own.onnx", rows)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


FEW = sfedhp.SFedHP(edge_rounds=1, personal_steps=1)
SHAPES = {
    "cnn": (1, 28, 28),
    "vgg": (3, 32, 32),
    "vgg-gn": (3, 32, 32),
    "resnet-gn": (3, 8, 8),
    "lstm": (4, 3),
}


@pytest.mark.slow
def test_every_preset_on_every_tier(tmp_path: Path) -> None:
    for name in MODELS:
        shape = SHAPES.get(name, (12,))
        pixels = RANDOM.integers(0, 256, (80, *shape)).astype(np.uint8)
        rows = pixels if len(shape) == 3 else pixels / 9.0
        models = trained(
            tmp_path / name, series(80) | {"inputs": rows}, model=sfedhp.ModelOptions(name), algorithm=FEW
        )
        for tier in ("global", "edge-0", "client-0-1"):
            kept(models / f"{tier}.safetensors", tmp_path / f"{name}-{tier}.onnx", rows[:40])
    found = differences(tmp_path)
    assert len(found) == 3 * len(MODELS)
    assert {name: each for name, each in found.items() if each >= 1e-5} == {}

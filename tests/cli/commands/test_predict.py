import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfedhp as library
from tests.support.invoking import invoke

WARDS = {"north": ("n1", "n2"), "south": ("s1", "s2")}


def write(path: Path, rows: int, columns: list[str]) -> Path:
    random = np.random.default_rng(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        for row in range(rows):
            edge = list(WARDS)[row % 2]
            ill = bool(random.random() < 0.5)
            table.writerow(
                {
                    "ward": WARDS[edge][row // 2 % 2],
                    "hospital": edge,
                    "pulse": f"{random.normal(90 if ill else 60, 5):.3f}",
                    "year": 2000 + int(random.integers(9)),
                    "sex": "fm"[row % 2] if row % 7 else "",
                    "health": "ill" if ill else "well",
                }
            )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    columns = ["ward", "hospital", "pulse", "year", "sex", "health"]
    source = write(folder / "all.csv", 120, columns)
    words = ["data.client_column=ward", "data.edge_column=hospital", "data.target=health", "rounds=10"]
    result = invoke("run", f"data.source={source}", *words, "--out", folder / "run")
    assert result.exit_code == 0, result.output
    write(folder / "new.csv", 40, ["sex", "pulse", "year", "health"])
    write(folder / "ward.csv", 30, ["pulse", "year", "sex", "health"])
    return folder


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("run/models/global.safetensors", "must end in .csv"),
        ("run/config.toml", "must end in .csv"),
        ("new.csv", "holds the rows to predict"),
    ],
)
def test_predictions_do_not_replace_a_model_a_config_or_the_data(
    folder: Path, out: str, message: str
) -> None:
    before = (folder / out).read_bytes()
    model = folder / "run" / "models" / "global.safetensors"
    result = invoke("predict", "--model", model, "--data", folder / "new.csv", "--out", folder / out)
    assert result.exit_code == 2
    assert message in result.stderr
    assert (folder / out).read_bytes() == before


def test_classes_and_probabilities_have_the_names_of_the_data(folder: Path) -> None:
    models = folder / "run" / "models"
    out = folder / "predicted.csv"
    result = invoke(
        "predict", "--model", models / "global.safetensors", "--data", folder / "new.csv", "--out", out
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("40 rows: ")
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    with (folder / "new.csv").open(encoding="utf-8", newline="") as file:
        truth = [row["health"] for row in csv.DictReader(file)]
    assert list(found[0]) == ["row", "prediction", "p(ill)", "p(well)"]
    right = sum(row["prediction"] == name for row, name in zip(found, truth, strict=True))
    assert right >= 38
    for row in found:
        assert float(row["p(ill)"]) + float(row["p(well)"]) == pytest.approx(1, abs=1e-5)
    client = library.load(folder / "run")
    assert list(client.edge_models) == ["north", "south"]
    assert sorted(client.client_models) == ["n1", "n2", "s1", "s2"]


def test_printed_as_csv_or_json(folder: Path) -> None:
    words = ["--model", folder / "run" / "models" / "client-s1.safetensors", "--data", folder / "new.csv"]
    lines = invoke("predict", *words).stdout.splitlines()
    found = json.loads(invoke("predict", *words, "--json").stdout)
    assert found["outputs"] == ["ill", "well"]
    assert [line.split(",")[1] for line in lines[1:]] == found["predictions"]
    assert found["rows"] == len(found["probabilities"]) == 40


def test_a_newcomer_brings_a_table_and_its_model_predicts(folder: Path) -> None:
    own = folder / "own.safetensors"
    words = [folder / "run", f"data.source={folder / 'ward.csv'}", "--out", own, "--json"]
    result = invoke("personalize", *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["after"] > 80
    found = invoke("predict", "--model", own, "--data", folder / "new.csv", "--json")
    assert json.loads(found.stdout)["rows"] == 40


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "pulse,year\n1,2\n", "a.csv has no column 'sex', which the model needs"),
        ("a.csv", "pulse,year,sex\n60,2001,f\n61,2001,x\n", "has 'x' in line 3, which is not a category"),
        ("a.csv", "pulse,year,sex\n60,2001\n", "line 2 has 2 values, but there are 3 columns"),
        ("a.npz", "", "The model was trained on a table, and a.npz is not"),
        ("none.csv", None, "There is no file"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    model = folder / "run" / "models" / "global.safetensors"
    out = tmp_path / "out.csv"
    result = invoke("predict", "--model", model, "--data", tmp_path / name, "--out", out)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not out.exists()


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    labels, client = np.arange(40) % 2, np.arange(40) // 20
    inputs = np.random.default_rng(0).normal(size=(40, 3))
    experiment = library.Experiment(rounds=1, edges=1, clients_per_edge=2)
    arrays = {"inputs": inputs, "labels": labels, "client": client}
    library.run(experiment, data=arrays, out=tmp_path / "run")
    model = tmp_path / "run" / "models" / "global.safetensors"

    def error(**arrays: Any) -> str:
        np.savez(tmp_path / "new.npz", **arrays)
        result = invoke("predict", "--model", model, "--data", tmp_path / "new.npz")
        assert result.exit_code == 2
        return result.stderr

    assert "inputs have shape (4,), but the model takes (3,)" in error(inputs=np.ones((2, 4)))
    assert "`inputs` are uint8, but the model was trained on floats" in error(
        inputs=np.ones((2, 3), np.uint8)
    )
    assert "has no array `inputs`" in error(labels=labels)
    assert "holds NaN" in error(inputs=np.full((2, 3), np.nan))
    np.savez(tmp_path / "new.npz", inputs=inputs)
    assert invoke("predict", "--model", model, "--data", tmp_path / "new.npz").exit_code == 0
    table = tmp_path / "new.csv"
    table.write_text("a\n1\n", encoding="utf-8")
    assert "new.csv is neither" in invoke("predict", "--model", model, "--data", table).stderr

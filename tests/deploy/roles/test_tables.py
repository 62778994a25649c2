"""Deployed clients with tables: their share of one, or their own, encoded and scaled as the kits say."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.deploy.roles.loading import client_data_options, load_client, load_model
from sfedhp.deploy.site import read_site
from sfedhp.serving.predict import predict
from sfedhp.serving.saved_model import read_saved_model
from tests.support.deploy_memory import Federation, experiment, same_models

COLUMNS = ("ward", "site", "held", "pulse", "year", "sex", "health")
WARDS = {"n1": "north", "n2": "north", "s1": "south", "s2": "south"}


def sex_of(ward: str, number: int) -> str:
    """Only one ward has a third category, and only one lacks values."""
    if ward == "s2" and number % 8 == 3:
        return "x"
    return "" if ward == "n1" and number % 8 else "fm"[number % 2]


def rows_of_wards() -> list[dict[str, object]]:
    random = np.random.default_rng(3)
    rows = []
    for number in range(80):
        ward = list(WARDS)[number % 4]
        ill = bool(random.random() < 0.5)
        rows.append(
            {
                "ward": ward,
                "site": WARDS[ward],
                "held": int(number % 5 == 0),
                "pulse": round(float(random.normal(90 if ill else 60, 5)), 3),
                "year": 1990 + int(random.integers(30)),
                "sex": sex_of(ward, number),
                "health": "ill" if ill else "well",
            }
        )
    return rows


def write(path: Path, rows: list[dict[str, object]], columns: tuple[str, ...] = COLUMNS) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    return path


@pytest.fixture
def what(tmp_path: Path):
    options = DataOptions(
        str(write(tmp_path / "all.csv", rows_of_wards())),
        target="health",
        client_column="ward",
        edge_column="site",
        test_column="held",
    )
    return replace(experiment(dtype="float64"), data=options, edges=2, clients_per_edge=2)


def own_files(folder: Path) -> dict[str, DataOptions]:
    """Each ward's rows as a file of its own, without the columns that say whose they are."""
    found = {}
    for place, ward in enumerate(WARDS):
        rows = [row for row in rows_of_wards() if row["ward"] == ward]
        path = write(folder / f"{ward}.csv", rows, ("health", "sex", "year", "held", "pulse"))
        name = f"client-{place // 2}-{place % 2}"
        found[name] = client_data_options(DataOptions(test_column="held"), str(path))
    return found


@pytest.mark.parametrize("own", [False, True], ids=["shares", "files of their own"])
def test_tables_give_the_simulators_models(tmp_path: Path, what, own: bool) -> None:
    run = sfedhp.run(what)
    federation = Federation(tmp_path / "kits", what, data=own_files(tmp_path) if own else None)
    federation.start()
    federation.finish()
    assert same_models(federation, run)
    assert federation.rows()[-1]["pm"] == pytest.approx(run.history[-1]["pm"])


def test_the_models_of_all_sites_predict_alone(tmp_path: Path, what) -> None:
    federation = Federation(tmp_path / "kits", what)
    federation.start()
    federation.finish()
    models = sfedhp.load(tmp_path / "kits")
    assert list(models.edge_models) == ["north", "south"]
    assert list(models.client_models) == list(WARDS)
    new = write(tmp_path / "new.csv", rows_of_wards()[:7], ("pulse", "year", "sex"))
    cards = {each.card.name: each for each in models.saved}
    assert cards.keys() == {"global", "north", "south", *WARDS}
    for saved in models.saved:
        assert set(predict(saved, new).values) <= {"ill", "well"}
        assert saved.card.origin.round == 3
    assert cards["global"].card.metrics["accuracy"] == pytest.approx(federation.rows()[-1]["gm"])
    assert cards["s1"].card.metrics["test_rows"] == 4
    site = read_site(tmp_path / "kits" / "client-0-0")
    assert site.schema is not None
    saved = read_saved_model(tmp_path / "kits" / "client-0-0" / "run" / "models" / "client-0-0.safetensors")
    np.testing.assert_array_equal(saved.card.schema.scaling.shift, site.schema.scaling.shift)


def test_a_table_that_does_not_fit_the_kits_is_refused(tmp_path: Path, what) -> None:
    federation = Federation(tmp_path / "kits", what)
    site, kit = federation.layout.clients[0], tmp_path / "kits" / "client-0-0"
    network = load_model(site, kit).network

    def load(text: str) -> None:
        (tmp_path / "own.csv").write_text(text, encoding="utf-8")
        load_client(site, network, client_data_options(DataOptions(), str(tmp_path / "own.csv")))

    good = "pulse,year,sex,health\n" + "60,2000,f,well\n95,2001,m,ill\n" * 3
    load(good)
    with pytest.raises(InputError, match="has no column 'year', which the model needs"):
        load(good.replace("year", "years"))
    with pytest.raises(InputError, match=r"the target 'health' is 'dead' in line 3, but the classes of the"):
        load(good.replace("ill", "dead"))
    with pytest.raises(InputError, match=r"'sex' has 'q' in line 2, which is not a category"):
        load(good.replace("f", "q"))

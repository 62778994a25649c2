"""Edges and clients by the names of the data: in files, in tables and from Python."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.runs.newcomers import personalize, read_models, shared_models
from sfedhp.runs.score_files import read_scores
from tests.support.short_runs import SMALL, arrays, remove_checksums_of_scores

CLIENTS = np.array(["ward 1", "Ward 1", "../w", "w\x1b[2J", "[b]x", "Zürich"])
EDGES = np.array(["north", "south/2"])
CLIENTS_BY_PLACE = (("Ward 1", "ward 1"), ("../w", "Zürich", "[b]x", "w\\x1b[2J"))  # in alphabetical order
NAMED = replace(SMALL, rounds=2, edges=2, clients_per_edge=(2, 4))


def named() -> dict[str, Any]:
    """Two clients at one site and four at the other."""
    plain = arrays()
    return plain | {"client": CLIENTS[plain["client"]], "edge": EDGES[(plain["client"] > 1).astype(int)]}


@pytest.fixture
def run(tmp_path: Path) -> sfedhp.Run:
    return sfedhp.run(NAMED, data=named(), out=tmp_path / "run")


def test_files_have_safe_names_of_the_data(run: sfedhp.Run) -> None:
    assert run.folder is not None
    found = {path.stem for path in (run.folder / "models").iterdir()}
    assert found == {
        *("global", "edge-north", "edge-south_2"),
        *("client-Ward_1", "client-ward_1-2", "client-.._w", "client-w_x1b_2J", "client-_b_x"),
        "client-Zürich",
    }


def test_models_are_found_by_name(run: sfedhp.Run) -> None:
    for edge, models in enumerate(run.client_models):
        for seat, model in enumerate(models):
            place = run.models.names.find_client(CLIENTS_BY_PLACE[edge][seat])
            assert place == (edge, seat)
            found = run.models.client(CLIENTS_BY_PLACE[edge][seat])
            assert model is not None
            assert found is not None
            assert all(map(torch.equal, model.parameters(), found.parameters()))
    south = run.models.edge("south/2")
    assert south is not None
    assert run.edge_models[1] is not None
    assert all(map(torch.equal, south.parameters(), run.edge_models[1].parameters()))
    with pytest.raises(InputError, match="There is no client 'ward 2': did you mean 'ward 1'"):
        run.models.client("ward 2")
    with pytest.raises(InputError, match="There is no edge 'xyz': the first is 'north'"):
        run.models.edge("xyz")


def test_without_names_seats_are_names(tmp_path: Path) -> None:
    run = sfedhp.run(replace(NAMED, rounds=1), data=arrays(), out=tmp_path / "run")
    assert {path.stem for path in (tmp_path / "run/models").iterdir()} == {
        *("global", "edge-0", "edge-1", "client-0-0", "client-0-1"),
        *(f"client-1-{seat}" for seat in range(4)),
    }
    assert run.models.names.find_client("client-1-3") == (1, 3)
    assert run.models.names.find_edge("edge-1") == 1
    scores = read_scores(tmp_path / "run")
    assert scores is not None
    assert "name" not in scores.clients[0]
    assert "classes" not in json.loads((tmp_path / "run/confusion.json").read_text())


def test_the_tables_of_a_run_have_the_names(run: sfedhp.Run) -> None:
    assert run.folder is not None
    scores = read_scores(run.folder)
    assert scores is not None
    found = [(row["edge_name"], row["name"], row["edge"], row["seat"]) for row in scores.clients]
    assert found == [
        (("north", "south/2")[edge], name, edge, seat)
        for edge, names in enumerate(CLIENTS_BY_PLACE)
        for seat, name in enumerate(names)
    ]
    assert "\x1b" not in (run.folder / "clients.csv").read_text()
    # A file that somebody has edited is no more trusted than data.
    path = run.folder / "clients.csv"
    remove_checksums_of_scores(run.folder)
    path.write_text(path.read_text().replace("Zürich", "Z\x1b[31m"))
    again = read_scores(run.folder)
    assert again is not None
    assert again.clients[3]["name"] == "Z\\x1b[31m"


def test_a_newcomer_starts_from_an_edge_by_name(run: sfedhp.Run) -> None:
    assert run.folder is not None
    assert list(shared_models(run)) == ["global", "edge-north", "edge-south_2"]
    assert list(read_models(run.folder, (4,))) == ["global", "edge-north", "edge-south_2"]
    rows = {"inputs": np.ones((6, 4)), "labels": np.arange(6) % 3}
    for source in (run, run.folder):
        assert personalize(source, rows, start="edge-south_2").start == "edge-south_2"
        assert personalize(source, rows, start="edge").start.startswith("edge-")

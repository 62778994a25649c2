"""Secure aggregation on NVIDIA FLARE: real certificates and processes, the simulator's models, real bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sfedhp
from sfedhp.algorithms import FEDERATED
from tests.support.deploy_memory import experiment, same_models

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from tests.support.deploy_processes import LONGEST, PATIENT, Fleet
from tests.support.json_lines import json_lines

METHODS = [name for name, kind in FEDERATED.items() if kind().needs_only_sums]
DOWN, UP = ("work", "offer", "confirm", "unmask"), ("reply", "offers", "confirmed", "shares")


@pytest.mark.parametrize(
    "name", [name if name == "fedavg" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_a_secure_federation_on_loopback_gives_the_simulators_models(name, tmp_path):
    what = experiment(name, secure=True, edges=1, clients_per_edge=3, rounds=2)
    run = sfedhp.run(what)
    with Fleet(tmp_path / "kits", what) as fleet:
        fleet.start()
        assert fleet.watch(LONGEST), f"the run did not end by itself\n{fleet.story()}"
        assert [row["missing"] for row in fleet.rows()] == [{}] * 2
        same_models(fleet, run)
        assert not fleet.events("edge-0" if fleet.layout.edges else "cloud", "no sum")
        same_bytes(fleet)


@pytest.mark.slow
def test_a_client_that_is_killed_within_a_secure_round_costs_no_round(tmp_path):
    """It is started again, draws another key, and takes part in later rounds."""
    what = experiment(secure=True, edges=1, clients_per_edge=4, rounds=6, algorithm={"edge_rounds": 6})
    with Fleet(tmp_path / "kits", what, replace(PATIENT, silent_seconds=4.0)) as fleet:
        fleet.start()
        fleet.until(lambda: fleet.edge_round("edge-0") >= (1, 2))
        fleet.send("client-0-3")
        fleet.until(lambda: fleet.edge_round("edge-0") >= (2, 0))
        assert fleet.watch(LONGEST), f"the run did not end by itself\n{fleet.story()}"
        rows = fleet.rows()
        assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
        missing = [row["missing"] for row in rows]
        assert missing[0] == {}
        assert all(each.keys() <= {"client-0-3"} for each in missing)
        assert any(missing)
        assert fleet.processes["client-0-3"].starts == 2
        assert not fleet.events("edge-0", "no sum")


def same_bytes(fleet):
    """The ledger counts what was given to FLARE: models, and what masks need beside them."""
    server, link = (
        ("edge-0", ("edge_client", "client_edge"))
        if fleet.layout.edges
        else (
            "cloud",
            ("cloud_client", "client_cloud"),
        )
    )
    columns = json_lines(fleet.kits / "cloud" / "run" / "ledger.jsonl")
    own, members = fleet.exchanged(server), [site.name for site in fleet.layout.clients]
    for name, way, kinds in ((link[0], "received", DOWN), (link[1], "sent", UP)):
        booked = np.sum([np.ravel(row[name]) for row in columns], axis=0)
        exchanged = [sum(fleet.exchanged(member)[way][kind] for kind in kinds) for member in members]
        assert booked.tolist() == exchanged
    for name, way, kind in ((link[0], "sent", "key"), (link[1], "received", "keys")):
        assert int(np.sum([np.sum(row.get(f"key_{name}", 0)) for row in columns])) == own[way][kind] > 0

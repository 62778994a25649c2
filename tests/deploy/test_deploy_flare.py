"""Federations on NVIDIA FLARE give the simulator's numbers. `make test-slow` runs all methods of the list."""

from __future__ import annotations

import numpy as np
import pytest

import sfedhp
from sfedhp.deploy.federation import FederationFile

from .memory import experiment
from .test_deploy_roles import same_models

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from .processes import Fleet

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    ["sfedhp", *(pytest.param(name, marks=SLOW) for name in ("hierfavg", "fedavg", "pfedme", "heurfedamp"))],
)
def test_a_federation_on_loopback_gives_the_simulators_models(name, tmp_path):
    what = experiment(name)
    run = sfedhp.run(what)
    with Fleet(tmp_path / "kits", what) as fleet:
        fleet.start()
        assert fleet.watch(150), f"the run did not end by itself\n{fleet.story()}"
        rows = fleet.rows()
        assert [row["round"] for row in rows] == [1, 2, 3]
        assert all(row["missing"] == {} for row in rows)
        assert same_models(fleet, run) or name in ("hierfavg", "fedavg")
        assert [worker.ended for worker in fleet.workers.values()] == [0] * len(fleet.workers)
        assert [worker.starts for worker in fleet.workers.values()] == [1] * len(fleet.workers)


@SLOW
def test_clients_with_files_of_their_own(tmp_path):
    """Nobody but the client reads its file; the kits know only the shape of an input and the labels."""
    random = np.random.default_rng(0)
    data = {}
    for number in range(2):
        labels = np.arange(24 + 12 * number) % 3
        inputs = random.normal(size=(len(labels), 4)) + 3 * np.eye(4)[labels]
        path = tmp_path / f"client-{number}.npz"
        np.savez(path, inputs=inputs, labels=labels)
        data[f"client-{number}-0"] = {"source": str(path), "partition": "iid"}
    what = experiment("fedavg", rounds=5, clients_per_edge=1, data={})
    file = FederationFile(inputs=(4,), classes=3)
    with Fleet(tmp_path / "kits", what, data=data, file=file) as fleet:
        fleet.start()
        assert fleet.watch(150), fleet.story()
        rows = fleet.rows()
        assert rows[-1]["gm"] > 80
        assert rows[-1]["missing"] == {}
        assert fleet.events("client-1-0", "up")[0]["rows"] == 27

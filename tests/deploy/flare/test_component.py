"""Federations on NVIDIA FLARE give the simulator's numbers. `make test-slow` runs all methods of the list."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sfedhp
from sfedhp.deploy.federation_file import Address, FederationFile
from tests.support.deploy_memory import experiment, same_models

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from sfedhp.deploy.renewal import renew, revoke
from tests.support.deploy_processes import LONGEST, PATIENT, Fleet
from tests.support.json_lines import json_lines

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
        assert fleet.watch(LONGEST), f"the run did not end by itself\n{fleet.story()}"
        rows = fleet.rows()
        assert [row["round"] for row in rows] == [1, 2, 3]
        assert all(row["missing"] == {} for row in rows)
        assert same_models(fleet, run) or name in ("hierfavg", "fedavg")
        assert [process.ended for process in fleet.processes.values()] == [0] * len(fleet.processes)
        assert [process.starts for process in fleet.processes.values()] == [1] * len(fleet.processes)
        same_bytes(fleet)


@pytest.mark.slow
def test_edges_with_two_and_four_clients_give_the_simulators_models(tmp_path):
    what = experiment(clients_per_edge=[2, 4])
    run = sfedhp.run(what)
    with Fleet(tmp_path / "kits", what) as fleet:
        assert len(list(fleet.kits.glob("client-*"))) == 6
        fleet.start()
        assert fleet.watch(LONGEST), f"the run did not end by itself\n{fleet.story()}"
        assert [row["missing"] for row in fleet.rows()] == [{}] * 3
        assert same_models(fleet, run)
        same_bytes(fleet)


WAYS = {"work": ("sent", "received"), "reply": ("received", "sent")}
WAYS |= {"score": WAYS["work"], "scores": WAYS["reply"]}


def same_bytes(fleet):
    """The ledger's bytes are those that every process gave to FLARE and got from it, member by member."""
    columns = json_lines(fleet.kits / "cloud" / "run" / "ledger.jsonl")
    layout, below = fleet.layout, "edge" if fleet.layout.edges else "client"
    servers = {"cloud": layout.cloud.below} | {site.name: site.below for site in layout.edges}
    for server, members in servers.items():
        upper, lower = ("cloud", below) if server == "cloud" else ("edge", "client")
        own = fleet.exchanged(server)
        for kind, (at_server, at_member) in WAYS.items():
            down = at_server == "sent"
            name = f"{upper}_{lower}" if down else f"{lower}_{upper}"
            name = f"score_{name}" if kind.startswith("score") else name
            booked = np.sum([row[name] for row in columns], axis=0)
            booked = booked[int(server.rpartition("-")[2])][: len(members)] if upper == "edge" else booked
            halves = [f"{member}/bridge" if lower == "edge" else member for member in members]
            assert booked.tolist() == [fleet.exchanged(half)[at_member][kind] for half in halves], name
            assert sum(booked) == own[at_server][kind] > 0, name
    for row, members in zip(fleet.rows(), columns, strict=True):
        sums = {f"bytes_{name}": int(np.sum(sizes)) for name, sizes in members.items() if name != "round"}
        assert sums == {name: row[name] for name in sums}
        assert len(sums) == (8 if layout.edges else 4)


@SLOW
def test_messages_over_http_give_the_simulators_models(tmp_path):
    """WebSocket over TLS, for sites behind proxies."""
    what = experiment("fedavg")
    run = sfedhp.run(what)
    with Fleet(tmp_path / "kits", what, file=FederationFile(cloud=Address(driver="http"))) as fleet:
        fleet.start()
        assert fleet.watch(LONGEST), fleet.story()
        assert [row["missing"] for row in fleet.rows()] == [{}] * 3
        same_models(fleet, run)


@SLOW
def test_a_large_model_fits_through_http_too(tmp_path):
    """A WebSocket of a member takes no message above 4 MiB, and this model is larger."""
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", inputs=images, labels=np.arange(40) % 10)
    what = experiment(
        "fedavg",
        rounds=2,
        edges=1,
        clients_per_edge=1,
        data={"source": str(tmp_path / "images.npz"), "partition": "iid"},
        model={"name": "cnn"},
        algorithm={"local_steps": 1},
    )
    run = sfedhp.run(what)
    with Fleet(tmp_path / "kits", what, file=FederationFile(cloud=Address(driver="http"))) as fleet:
        fleet.start()
        assert fleet.watch(LONGEST), fleet.story()
        _, row = fleet.rows()  # in the first round the model compresses well
        assert row["missing"] == {}
        assert min(row["bytes_cloud_client"], row["bytes_client_cloud"]) > 2**22
        assert row["gm"] == pytest.approx(run.history[1]["gm"], abs=0.5)


@SLOW
def test_a_member_is_revoked_and_renewed_over_http_too(tmp_path):
    what = experiment("fedavg", rounds=10**6, edges=1)
    file, limits = FederationFile(cloud=Address(driver="http")), replace(PATIENT, silent_seconds=5.0)
    with Fleet(tmp_path / "kits", what, limits, file=file) as fleet:
        fleet.start()
        fleet.until(lambda: fleet.rows())
        revoke(fleet.kits, "client-0-1")
        fleet.until(lambda: "client-0-1" in fleet.rows()[-1]["missing"])
        assert [line for line in fleet.events("cloud", "refused") if "revoked" in line["reason"]]
        renew(fleet.kits, "client-0-1", 10)
        fleet.send("client-0-1")
        fleet.until(lambda: not fleet.rows()[-1]["missing"])
        assert fleet.processes["cloud"].starts == fleet.processes["client-0-0"].starts == 1


@SLOW
def test_clients_with_files_of_their_own(tmp_path):
    """Only the client reads its file; the kits know only the shape of an input and the labels."""
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
        assert fleet.watch(LONGEST), fleet.story()
        rows = fleet.rows()
        assert rows[-1]["gm"] > 80
        assert rows[-1]["missing"] == {}
        assert fleet.events("client-1-0", "up")[0]["rows"] == 27

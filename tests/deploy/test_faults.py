"""What happens when roles are killed, frozen, cut off or out of disk, on NVIDIA FLARE.

The whole suite takes some minutes: `make test-slow`, or `pytest -m slow tests/deploy/test_faults.py`.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from dataclasses import replace

import pytest

import sfedhp
from sfedhp.deploy.federation_file import Address
from tests.support.deploy_memory import experiment, same_models

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

import psutil  # type: ignore[import-untyped]

from tests.support.deploy_processes import LONGEST, PATIENT, Fleet
from tests.support.json_lines import json_lines

pytestmark = pytest.mark.slow

LONG = {"edge_rounds": 60}  # a cloud round takes seconds: something can happen within it
WAITING = replace(PATIENT, silent_seconds=60.0, client_seconds=120.0)  # no member is given up
HASTY = replace(PATIENT, silent_seconds=3.0)


def middle(fleet, cloud_round, edge="edge-1", after=10):
    """Wait until an edge is in the middle of a cloud round."""
    fleet.until(lambda: fleet.edge_round(edge) >= (cloud_round, after))


def ended(fleet, rounds, seconds=LONGEST):
    assert fleet.watch(seconds), f"the run did not end by itself\n{fleet.story()}"
    rows = fleet.rows()
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    return rows


@contextlib.contextmanager
def running(folder, what, limits):
    """A federation of which every role is started."""
    with Fleet(folder / "kits", what, limits) as fleet:
        fleet.start()
        yield fleet


@pytest.fixture(scope="module")
def simulated():
    what = experiment(rounds=3, algorithm=LONG)
    return what, sfedhp.run(what)


@pytest.mark.parametrize("name", ["client-0-1", "edge-0", "cloud"])
def test_a_killed_role_continues_where_it_was(name, simulated, tmp_path):
    """With patience enough, a SIGKILL in the middle of a round changes no number."""
    what, run = simulated
    with running(tmp_path, what, WAITING) as fleet:
        middle(fleet, 1, "edge-0", 3)
        fleet.send(name)
        rows = ended(fleet, 3)
        assert fleet.processes[name].starts == 2
        assert all(row["missing"] == {} for row in rows)
        same_models(fleet, run)
        if name != "cloud":
            assert fleet.events(name, "resumed")


def test_the_half_of_an_edge_that_faces_the_cloud_is_started_again(simulated, tmp_path):
    what, run = simulated
    with running(tmp_path, what, WAITING) as fleet:
        middle(fleet, 1, "edge-0")
        (other,) = psutil.Process(fleet.pid("edge-0")).children()
        other.kill()
        ended(fleet, 3)
        same_models(fleet, run)
        assert len([line for line in _log(fleet, "edge-0/run/bridge") if line["event"] == "up"]) == 2


def test_all_are_killed_one_after_another(simulated, tmp_path):
    what, run = simulated
    with running(tmp_path, what, WAITING) as fleet:
        middle(fleet, 1, "edge-0")
        for name in ("client-1-0", "edge-1", "cloud", "edge-0", "client-0-0"):
            fleet.send(name)
            fleet.until(lambda name=name: fleet.processes[name].starts == 2)
            time.sleep(1.0)
        rows = ended(fleet, 3)
        assert all(row["missing"] == {} for row in rows)
        same_models(fleet, run)


def test_a_client_that_is_gone_weighs_zero_and_comes_back(tmp_path):
    what = experiment(rounds=6, algorithm=LONG)
    with running(tmp_path, what, HASTY) as fleet:
        middle(fleet, 1)
        fleet.send("client-1-1")
        rows = ended(fleet, 6)
        missed = [row["missing"].get("client-1-1", 0) for row in rows]
        assert sum(missed) > 0, "it was given up while it was away"
        assert all(set(row["missing"]) <= {"client-1-1"} for row in rows)
        resumed = fleet.events("client-1-1", "resumed")
        assert len(resumed) == 1
        assert missed[-1] == 0 or sum(missed) < 6 * LONG["edge_rounds"]
        assert fleet.events("edge-1", "came")


def test_an_edge_that_is_gone_is_missing_at_the_cloud(tmp_path):
    """Its clients wait; the cloud continues without it, and with it again when it is back."""
    what = experiment(rounds=8, algorithm=LONG)
    with running(tmp_path, what, HASTY) as fleet:
        middle(fleet, 1)
        fleet.send("edge-1")
        rows = ended(fleet, 8)
        assert any("edge-1" in row["missing"] for row in rows)
        assert "edge-1" not in rows[0]["missing"]


def test_edges_finish_their_rounds_while_the_cloud_is_frozen(tmp_path):
    what = experiment(rounds=2, algorithm={"edge_rounds": 100})
    with running(tmp_path, what, WAITING) as fleet:
        middle(fleet, 0, "edge-0", 5)
        fleet.send("cloud", signal.SIGSTOP)
        try:
            before = fleet.edge_round("edge-0")
            fleet.until(lambda: all(fleet.edge_round(edge) == (0, 100) for edge in ("edge-0", "edge-1")))
            assert before < (0, 100)
            assert not fleet.rows()
        finally:
            fleet.send("cloud", signal.SIGCONT)
        ended(fleet, 2)


def test_a_new_client_joins_a_running_federation(tmp_path):
    what = experiment(rounds=40, algorithm={"edge_rounds": 30})
    limits = replace(HASTY, start_seconds=25.0)
    with Fleet(tmp_path / "kits", what, limits) as fleet:
        fleet.start(*(name for name in fleet.processes if name != "client-0-1"))
        fleet.until(lambda: fleet.rows())
        fleet.join("client-0-1")
        rows = ended(fleet, 40)
        assert rows[0]["missing"] == {"client-0-1": 30}
        assert rows[-1]["missing"] == {}
        assert fleet.models("client-0-1")


def test_a_full_disk_at_the_edge(simulated, tmp_path):
    """Nothing that was acknowledged is lost: the edge continues when there is room again."""
    what, run = simulated
    with Fleet(tmp_path / "kits", what, WAITING) as fleet:
        disk = fleet.kits / "edge-0" / "run"
        disk.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True
        ).returncode:
            pytest.skip("a file system of limited size cannot be mounted here")
        try:
            fleet.start()
            middle(fleet, 0, "edge-0", 5)
            fill(disk / "filler")
            time.sleep(8)
            (disk / "filler").unlink()
            ended(fleet, 3)
            troubles = [line["reason"] for line in fleet.events("edge-0", "trouble")]
            output = (fleet.kits / "edge-0" / "output.txt").read_text(errors="replace")
            assert any("No space left" in reason for reason in [*troubles, output])
            same_models(fleet, run)
        finally:
            fleet.__exit__()
            subprocess.run(["umount", "-l", disk], check=True)


NETWORKS = ("sfedhp-cloud", "sfedhp-edges")


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, check=check)


@pytest.fixture
def networks():
    """Two networks with one link between them: the cloud's, and the others'."""
    cloud, edges = NETWORKS
    try:
        made = (
            ip("netns", "add", cloud, check=False).returncode
            or ip("netns", "add", edges, check=False).returncode
        )
    except FileNotFoundError:
        made = 1
    if made:
        pytest.skip("network namespaces cannot be made here")
    try:
        ip(
            "link",
            "add",
            "sfedhp0",
            "netns",
            cloud,
            "type",
            "veth",
            "peer",
            "name",
            "sfedhp1",
            "netns",
            edges,
        )
        for network, device, address in (
            (cloud, "sfedhp0", "10.213.7.1/24"),
            (edges, "sfedhp1", "10.213.7.2/24"),
        ):
            ip("-n", network, "address", "add", address, "dev", device)
            for each in (device, "lo"):
                ip("-n", network, "link", "set", each, "up")
        yield NETWORKS
    finally:
        for network in NETWORKS:
            ip("netns", "delete", network, check=False)


def test_a_network_cut_between_the_tiers(simulated, networks, tmp_path):
    """The edges work on while the cloud cannot be reached, and nothing is lost."""
    what, run = simulated
    address = Address("10.213.7.1", 8100)
    with Fleet(tmp_path / "kits", what, WAITING, cloud=address) as fleet:
        for name, process in fleet.processes.items():
            network = networks[0] if name == "cloud" else networks[1]
            process.argv[:0] = ["ip", "netns", "exec", network]
        fleet.start()
        middle(fleet, 1, "edge-0", 3)
        ip("-n", networks[0], "link", "set", "sfedhp0", "down")
        try:
            done = len(fleet.rows())
            fleet.until(lambda: all(fleet.edge_round(f"edge-{edge}") == (1, 60) for edge in (0, 1)))
            time.sleep(5)
            assert len(fleet.rows()) == done, "the cloud knows of no client"
        finally:
            ip("-n", networks[0], "link", "set", "sfedhp0", "up")
        rows = ended(fleet, 3)
        assert all(row["missing"] == {} for row in rows)
        same_models(fleet, run)


def fill(path):
    """Take all room that a disk has."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"0" * 4096):
            pass


def _log(fleet, folder):
    return json_lines(fleet.kits / folder / "log.jsonl")

"""Networks that fail: a cut path, lost packets, delay, and connections that are reset. Numbers do not change.

The cloud and its clients are in network namespaces of their own, which needs root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import sfedhp
from sfedhp.deploy.federation_file import LOOPBACK, Address, FederationFile, Limits
from tests.support.deploy_memory import experiment, same_models

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from tests.support.deploy_processes import LONGEST, Fleet
from tests.support.lossy_cable import TUN, LossyCable
from tests.support.tcp_proxy import TcpProxy

CLOUD, CLIENTS = "sfedhp-cloud", "sfedhp-clients"
HOST = "10.77.0.1"
PATIENT = Limits(client_seconds=300.0, start_seconds=300.0, silent_seconds=120.0)


def obstacle() -> str:
    """Why there can be no namespaces here; empty: there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or not os.path.exists(TUN):
        return f"ip (iproute2) is not installed, or there is no {TUN}"
    done = subprocess.run(["ip", "netns", "add", "sfedhp-probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "sfedhp-probe"], capture_output=True, check=False)
    return "this system allows no network namespaces" if done.returncode else ""


pytestmark = pytest.mark.slow


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def inside(namespace: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", "netns", "exec", namespace, *words], check=check, capture_output=True)


@pytest.fixture
def cable() -> Iterator[LossyCable]:
    """Two namespaces with a cable between them."""
    for name in (CLOUD, CLIENTS):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    yield LossyCable((CLOUD, f"{HOST}/24"), (CLIENTS, "10.77.0.2/24"))
    for name in (CLOUD, CLIENTS):
        ip("netns", "del", name)


def cut(cable: LossyCable) -> None:
    cable.loss = 1.0
    time.sleep(30)
    cable.loss = 0.0


def loss(cable: LossyCable) -> None:
    cable.loss = 0.2


def delay(cable: LossyCable) -> None:
    cable.delay = 0.15  # each way


def reset(cable: LossyCable) -> None:
    done = inside(CLOUD, "ss", "--kill", "-H", "-t", "state", "established", check=False)
    if not done.stdout.strip():  # it lists those that it killed
        pytest.skip("ss cannot kill connections here")


ROUNDS = {cut: 150, loss: 15, delay: 15, reset: 150}


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
@pytest.mark.parametrize("disturb", ROUNDS)
def test_a_run_continues_over_a_bad_network(cable, tmp_path, disturb):
    rounds = ROUNDS[disturb]
    what = experiment("fedavg", edges=1, rounds=rounds, evaluation={"every": rounds})
    run = sfedhp.run(what)
    address = Address(HOST, 8100)
    with Fleet(tmp_path / "kits", what, PATIENT, cloud=address, file=FederationFile()) as fleet:
        for name, managed in fleet.processes.items():
            place = CLOUD if name == "cloud" else CLIENTS
            fleet.processes[name] = replace(managed, argv=["ip", "netns", "exec", place, *managed.argv])
        fleet.start()
        fleet.until(lambda: len(fleet.rows()) > 2)
        disturb(cable)
        assert fleet.watch(LONGEST), fleet.story()
        rows = fleet.rows()
        assert len(rows) == rounds
        assert all(row["missing"] == {} for row in rows)
        same_models(fleet, run)
    assert bool(cable.lost) == (disturb in (cut, loss))
    assert cable.passed > 100


def test_a_run_continues_behind_a_slow_proxy_that_resets_connections(tmp_path):
    """300 ms there and back, all connections reset twice; members connect to the proxy's port."""
    what = experiment("fedavg", edges=1, rounds=30, evaluation={"every": 30})
    run = sfedhp.run(what)
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    proxy = TcpProxy(port, 0.15)
    address = Address(LOOPBACK, proxy.port, listen_port=port)
    with Fleet(tmp_path / "kits", what, PATIENT, cloud=address, file=FederationFile()) as fleet:
        fleet.start()
        for rounds in (3, 12):
            fleet.until(lambda rounds=rounds: len(fleet.rows()) > rounds)
            assert proxy.reset() >= 2
        assert fleet.watch(LONGEST), fleet.story()
        assert len(fleet.rows()) == 30
        assert all(row["missing"] == {} for row in fleet.rows())
        same_models(fleet, run)
    assert proxy.connections >= 6
    proxy.close()

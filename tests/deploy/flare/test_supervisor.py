"""Processes that are kept running, kits, and where the roles meet FLARE."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sfedhp.core.errors import InputError
from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.flare.supervisor import (
    DATA,
    PARENT,
    TRACK,
    USER_FOLDER,
    ManagedProcess,
    Supervisor,
    command,
    process_environment,
)
from sfedhp.deploy.messaging.inbox import BoundedInbox
from sfedhp.deploy.messaging.protocol import Envelope, Kind, encode_message
from sfedhp.deploy.topology import lay_out
from tests.support.deploy_memory import experiment
from tests.support.flare_cell import Cell

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from nvflare.apis.event_type import EventType
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message

from sfedhp.deploy.flare import component as flare
from sfedhp.deploy.flare import uplink_process
from sfedhp.deploy.flare.cell_transport import CellTransport
from sfedhp.deploy.flare.uplink_process import UplinkProcess
from sfedhp.deploy.provisioning import make_kits
from tests.support.json_lines import json_lines


def inbox():
    return BoundedInbox(["client-0-0", "server"], 2**25)


def process(folder: Path, code: str) -> ManagedProcess:
    return ManagedProcess("it", [sys.executable, "-c", code], folder, process_environment())


def watched(supervisor, seconds=600.0):
    until = time.monotonic() + seconds
    while supervisor.poll():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_process_that_dies_is_started_again_until_it_ends_well(tmp_path, monkeypatch):
    monkeypatch.setattr("sfedhp.deploy.flare.supervisor._RESTART_SECONDS", 0.1)
    code = "import os, sys; there = os.path.exists('been'); open('been', 'w'); sys.exit(0 if there else 7)"
    supervisor = Supervisor([process(tmp_path / "kit", code)])
    supervisor.start()
    watched(supervisor)
    assert supervisor.processes[0].starts == 2


def test_a_process_that_refuses_to_start_is_not_started_again(tmp_path):
    supervisor = Supervisor([process(tmp_path, "print('error: no data here.'); raise SystemExit(2)")])
    supervisor.start()
    with pytest.raises(InputError, match="it did not start: no data here"):
        watched(supervisor)
    silent = Supervisor([process(tmp_path / "other", "raise SystemExit(2)")])
    silent.start()
    with pytest.raises(InputError, match=r"output\.txt"):
        watched(silent)


@pytest.mark.parametrize(("deaf", "grace", "signal"), [(False, 600.0, 15), (True, 0.2, 9)])
def test_a_process_is_ended_gently_or_firmly(tmp_path, monkeypatch, deaf, grace, signal):
    monkeypatch.setattr("sfedhp.deploy.flare.supervisor._GRACE", grace)
    ignore = "signal.signal(15, signal.SIG_IGN); " if deaf else ""
    code = f"import signal, time; {ignore}print('up', flush=True); time.sleep(600)"
    supervisor = Supervisor([process(tmp_path, code)])
    supervisor.start()
    until = time.monotonic() + 600
    while not (tmp_path / "output.txt").read_text() and time.monotonic() < until:
        time.sleep(0.02)
    supervisor.stop()
    assert [each.ended for each in supervisor.processes] == [-signal]
    supervisor.stop()


def test_the_environment_of_a_role(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = process_environment(12, {"source": "mine.npz"}, track=["tensorboard", "mlflow"])
    assert found["OMP_NUM_THREADS"] == "1"
    assert found[PARENT] == "12"
    assert found[TRACK] == "tensorboard,mlflow"
    assert json.loads(found[DATA]) == {"source": "mine.npz"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert process_environment()["OMP_NUM_THREADS"] == "3"
    assert PARENT not in process_environment()
    assert process_environment()["GRPC_VERBOSITY"] == "NONE"
    assert process_environment(server=True)["GRPC_VERBOSITY"] == "INFO", (
        "otherwise nothing logs rejected members"
    )


def test_a_role_finds_modules_in_the_working_directory(tmp_path, monkeypatch):
    """As `sfedhp run` does, and after everything else, so that no file there replaces one of Python."""
    (tmp_path / "own_model_here.py").write_text("print('found')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(USER_FOLDER, raising=False)
    code = (
        "from sfedhp.deploy.flare.component import add_user_folder; add_user_folder(); "
        "import own_model_here, sys; print(sys.path[-1])"
    )
    supervisor = Supervisor([process(tmp_path / "kit", code)])
    supervisor.start()
    watched(supervisor)
    assert (tmp_path / "kit" / "output.txt").read_text().split() == ["found", str(tmp_path)]


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits") / "kits"
    make_kits(lay_out(FederationFile(), experiment()), folder)
    return folder


def test_kits_for_everyone_and_an_administrator_for_no_one(kits):
    names = {path.name for path in kits.iterdir()}
    clients = {f"client-{edge}-{seat}" for edge in (0, 1) for seat in (0, 1)}
    assert names == {"cloud", "edge-0", "edge-1", "authorities"} | clients
    assert not list(kits.rglob("fed_admin.json"))
    assert oct(kits.stat().st_mode)[-3:] == "700"
    assert all(oct(key.stat().st_mode)[-3:] == "600" for key in kits.rglob("*.key"))
    secret = [path for path in kits.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in secret} == {"client.key", "server.key", "cert.json"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in kits.rglob("*")), "also where they are copied to"
    roots = {
        (kits / name / "startup" / "rootCA.pem").read_text() for name in ("cloud", "client-0-0", "client-1-0")
    }
    assert len(roots) == 3, "every server has a certificate authority of its own"
    assert (kits / "client-0-0" / "startup" / "rootCA.pem").read_text() == (
        kits / "edge-0" / "server" / "startup" / "rootCA.pem"
    ).read_text()


def test_kits_may_be_moved(kits, tmp_path):
    argv = command(kits / "edge-0" / "member")
    assert argv[:4] == [sys.executable, "-u", "-m", "nvflare.private.fed.app.client.client_train"]
    assert "uid=edge-0" in argv
    assert "nvflare.private.fed.app.server.server_train" in command(kits / "cloud")
    resources = (kits / "cloud" / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in resources
    assert str(kits / "cloud" / "store" / "jobs") in resources
    with pytest.raises(InputError, match="not a FLARE kit"):
        command(tmp_path)


def test_keys_that_a_copy_opened_to_others_are_closed_at_the_start(kits):
    key = kits / "client-0-0" / "startup" / "client.key"
    key.chmod(0o644)
    command(kits / "client-0-0")
    assert oct(key.stat().st_mode)[-3:] == "600"


def test_kits_are_not_made_twice(kits):
    with pytest.raises(InputError, match=r"not empty: .* or start those that it holds, with `sfedhp cloud "):
        make_kits(lay_out(FederationFile(), experiment()), kits)


def test_kits_of_servers_with_names_and_addresses(tmp_path):
    edges = (Address("north.example.org", 9001), Address("10.0.0.7", 9001))
    file = FederationFile("clinics", cloud=Address("cloud.example.org", 9000), edges=edges)
    make_kits(lay_out(file, experiment()), tmp_path / "kits")
    for kit, target in (
        ("edge-0/member", "cloud.example.org:9000"),
        ("client-0-0", "north.example.org:9001"),
        ("client-1-0", "10.0.0.7:9001"),
    ):
        config = json.loads((tmp_path / "kits" / kit / "startup" / "fed_client.json").read_text())
        assert config["servers"][0]["service"]["target"] == target


@pytest.mark.parametrize(
    ("url", "largest"),
    [("grpc://localhost:8100", 2**24), (["http://localhost:443"], 2**21), ("http://localhost:443", 2**21)],
)
def test_the_post_over_a_cell(url, largest):
    cell = Cell()
    cell.root_url = url
    transport = CellTransport(cell, inbox())
    transport.send("client-0-0", bytes(largest))
    assert [(to, len(data)) for to, data in cell.sent] == [(["client-0-0"], largest)]
    cell.core_cell = None
    transport.send("client-0-0", bytes(largest + 1))
    assert len(cell.sent[1][1]) == largest + 1, "what is large goes as a stream, not through the core"
    assert cell.callback is not None
    cell.callback(Message({MessageHeaderKey.ORIGIN: "server"}, bytearray(b"word")))
    cell.callback(Message({MessageHeaderKey.ORIGIN: "server"}, {"not": "bytes"}))
    assert transport.inbox.get(timeout=0) == ("server", b"word")
    with pytest.raises(queue.Empty):
        transport.inbox.get(timeout=0)
    CellTransport(Cell(broken=True), inbox()).send("client-0-0", b"hello")


RUN = "a" * 16


class Once:
    """A role that does nothing, or fails."""

    def __init__(self, error=None):
        self.error = error

    def work(self):
        if self.error:
            raise self.error


class Other(UplinkProcess):
    """An edge's other half, without a process."""

    def __init__(self):
        self.waited = 0.0

    def wait(self, seconds):
        self.waited = seconds


@pytest.mark.parametrize(
    ("error", "code", "event"),
    [(None, 0, None), (InputError("no data"), 2, "refused to start"), (RuntimeError("odd"), 1, "failed")],
)
def test_a_role_ends_its_process_with_a_word(monkeypatch, tmp_path, error, code, event, capsys):
    monkeypatch.setattr(flare, "_GRACE", 0.0)
    monkeypatch.setattr(flare, "_role", lambda *_: Once(error))
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    ended: list[int] = []
    other = Other()
    transport = CellTransport(Cell(), inbox())
    transport.send("client-0-0", encode_message(Envelope(Kind.WORK, RUN, RUN, 0)))
    transport.send("client-0-0", b"SFHM")
    flare.run_role("edge", tmp_path, transport, other, ended.append)
    assert ended == [code]
    assert other.waited > 0
    lines = json_lines(tmp_path / "run" / "log.jsonl")
    assert [line["event"] for line in lines] == [*([event] if event else []), "exchanged"]
    assert lines[-1]["sent"] == {"work": 51, "unknown": 4}
    assert lines[-1]["received"] == {}
    if code == 2:
        assert capsys.readouterr().out == "error: no data\n"


@pytest.mark.parametrize(
    ("role", "kit"), [("cloud", "cloud"), ("edge", "edge-0"), ("bridge", "edge-0"), ("client", "client-0-0")]
)
def test_each_kit_has_its_role(kits, role, kit, monkeypatch):
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.setenv(TRACK, "tensorboard")
    found = flare._role(role, kits / kit, CellTransport(Cell(), inbox()))
    names = {"cloud": "CloudRole", "edge": "EdgeRole", "bridge": "UplinkRole", "client": "ClientRole"}
    assert type(found).__name__ == names[role]
    if role == "cloud":
        assert found._tracking._names == ["tensorboard"]


def test_a_station_starts_its_role_when_flare_is_up(monkeypatch, kits):
    started = threading.Event()
    monkeypatch.setattr(flare, "run_role", lambda role, kit, transport, uplink: started.set())
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.delenv(PARENT, raising=False)
    cell = Cell()

    class Engine:
        def get_cell(self):
            return cell

    class Context:
        def get_engine(self):
            return Engine()

    component = flare.RoleComponent("client", str(kits / "client-0-0"))
    component.handle_event("_something_else", Context())
    assert not started.is_set()
    component.handle_event(EventType.SYSTEM_START, Context())
    assert started.wait(600)
    assert cell.reject(Message({MessageHeaderKey.DESTINATION: "server"}, None)), "the allowlist is there"


def test_an_edges_other_half_is_kept_running(monkeypatch, tmp_path):
    monkeypatch.setattr(
        uplink_process, "command", lambda workspace: [sys.executable, "-c", "print('other half')"]
    )
    uplink = UplinkProcess(tmp_path / "member")
    uplink.wait(600)
    assert (tmp_path / "member" / "output.txt").read_text() == "other half\n"


def test_a_process_ends_with_the_one_that_started_it(tmp_path):
    code = (
        "from sfedhp.deploy.flare.component import watch_parent; import time; watch_parent(); time.sleep(600)"
    )
    env = process_environment(os.getpid() + 100000)
    supervisor = Supervisor([ManagedProcess("orphan", [sys.executable, "-c", code], tmp_path, env)])
    supervisor.start()
    until = time.monotonic() + 600
    while supervisor.processes[0].ended is None and time.monotonic() < until:
        time.sleep(0.1)
    assert supervisor.processes[0].ended == flare.FAILED

"""Who is not let in: no certificate, another federation's, a client's kit in another role, plain text."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.deploy_memory import experiment

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

import psutil  # type: ignore[import-untyped]

from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.flare.rejections import STDERR_FILE, reason_of
from sfedhp.deploy.flare.supervisor import ManagedProcess, Supervisor, command, process_environment
from tests.support.deploy_processes import Fleet
from tests.support.raw_connection import channel_to, connected


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """A cloud alone, which waits for its edges, and the kits of its federation."""
    with Fleet(tmp_path_factory.mktemp("federation") / "kits", experiment()) as fleet:
        fleet.start("cloud")
        port = fleet.layout.file.cloud.port
        fleet.until(lambda: _listens(port))
        fleet.until(lambda: fleet.events("cloud", "up"))
        yield fleet


@contextmanager
def _logged(fleet, reason):
    """The cloud's log tells of what is refused here; of a series some lines come later, with their number."""

    def told():
        lines = [line for line in fleet.events("cloud", "refused") if reason in line["reason"]]
        return sum(line["times"] for line in lines)

    before = told()
    yield
    fleet.until(lambda: told() > before)


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _address(fleet):
    return "127.0.0.1", fleet.layout.file.cloud.port


def _greeting(connection):
    """An HTTP/2 greeting, as a gRPC client sends it; what comes back."""
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        return connection.recv(64)
    except OSError:
        return b""


def _context(kit: Path | None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    return context


def _over_tls(fleet, kit):
    try:
        with socket.create_connection(_address(fleet), 60) as plain:
            plain.settimeout(60)
            with _context(kit).wrap_socket(plain) as secure:
                return _greeting(secure)
    except OSError:
        return b""


def test_plain_text_is_refused_and_logged(cloud):
    with _logged(cloud, "plain text"), socket.create_connection(_address(cloud), 60) as plain:
        plain.settimeout(60)
        assert _greeting(plain) == b""


def test_no_certificate_is_refused_and_logged(cloud):
    with _logged(cloud, "without a certificate"):
        assert _over_tls(cloud, None) == b""


def test_a_clients_certificate_is_refused_by_the_cloud_and_logged(cloud):
    """A client's kit cannot be an edge: its certificate is of its edge's federation."""
    with _logged(cloud, "did not issue"):
        assert _over_tls(cloud, cloud.kits / "client-0-0") == b""


def test_a_members_certificate_is_let_in_and_not_logged(cloud):
    """What the other tests are held against."""

    errors = cloud.kits / "cloud" / "run" / STDERR_FILE  # what gRPC says is logged a moment later

    def reasons():
        logged = {line["reason"] for line in cloud.events("cloud", "refused")}
        said = {reason_of(line) for line in errors.read_text(errors="replace").splitlines()} - {None}
        return logged | said

    def ended():
        held = psutil.Process(cloud.pid("cloud")).net_connections()
        return all(each.status == psutil.CONN_LISTEN or each.laddr.port != port for each in held)

    before, port = reasons(), _address(cloud)[1]  # of a series, some lines come later
    assert _over_tls(cloud, cloud.kits / "edge-0" / "member")
    cloud.until(ended)
    assert reasons() == before


def test_the_server_listens_on_loopback_alone(cloud):
    found = psutil.Process(cloud.pid("cloud")).net_connections()
    hosts = {each.laddr.ip.removeprefix("::ffff:") for each in found if each.status == psutil.CONN_LISTEN}
    assert hosts == {"127.0.0.1"}


def test_a_member_with_many_connections_leaves_room_for_the_others(cloud):
    """FLARE serves a hundred connections at a time, whosever they are."""
    end, port = threading.Event(), _address(cloud)[1]
    greedy, honest = (cloud.kits / name / "member" / "startup" for name in ("edge-0", "edge-1"))
    with channel_to(port, greedy) as many, channel_to(port, honest) as one:
        opened = [connected(many, "edge-0", end) for _ in range(150)]
        assert connected(one, "edge-1", end).is_active()
        # A closed connection's other side learns of it a moment later.
        cloud.until(lambda: sum(frames.is_active() for frames in opened) <= 4)
        end.set()


@pytest.mark.slow
def test_another_federations_kit_is_refused_and_logged(cloud, tmp_path):
    """A kit of the same names from another federation, pointed at this cloud's port."""
    with Fleet(tmp_path / "other", experiment()) as other:
        port, kit = _address(cloud)[1], other.kits / "edge-0" / "member"
        config = kit / "startup" / "fed_client.json"
        values = json.loads(config.read_text())
        values["servers"][0]["service"]["target"] = f"localhost:{port}"
        config.write_text(json.dumps(values))
        with _logged(cloud, "did not issue"):
            assert _over_tls(cloud, kit) == b""
        # FLARE's own member turns away itself, for it does not know this cloud's certificate either.
        said = _tried(ManagedProcess("stranger", command(kit), kit, process_environment()), 25)
        assert "Successfully registered" not in said
        assert "Retrying" in said or "re-challenge" in said
        assert not cloud.events("cloud", "came")


@pytest.mark.slow
def test_a_members_name_cannot_be_taken_with_another_certificate(cloud, tmp_path):
    """edge-0's certificate under the name of edge-1: let in by TLS, refused by FLARE, and logged."""
    kit = tmp_path / "impostor"
    shutil.copytree(cloud.kits / "edge-0" / "member", kit)
    config = kit / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace('"edge-0"', '"edge-1"'))
    said = _tried(ManagedProcess("impostor", command(kit), kit, process_environment()), 25)
    assert "Successfully registered" not in said
    log = (cloud.kits / "cloud" / "error_log.txt").read_text()
    assert "authenticated as 'edge-0' but claimed endpoint 'edge-1'" in log
    assert not [line for line in cloud.events("cloud", "came") if line["member"] == "edge-1"]


@pytest.mark.slow
def test_a_clients_kit_is_no_administrators(tmp_path):
    """FLARE's administration with a member's certificate, under a name of its own: nothing is answered."""
    with Fleet(tmp_path / "kits", experiment("fedavg")) as fleet:
        fleet.start("cloud")
        fleet.until(lambda: fleet.events("cloud", "up"))
        kit = _admin_kit(tmp_path / "admin", fleet)
        with _logged(fleet, "a message under another name"):
            done = subprocess.run(
                [sys.executable, "-c", INTRUDER, str(kit)],
                cwd=kit,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        tried = [line for line in done.stdout.splitlines() if line.startswith(("tried", "done"))]
        assert [line.split(":")[0] for line in tried] == ["tried login", *["tried request"] * 5], done.stderr
        assert all("timeout" in line for line in tried[1:]), tried
        assert {line["member"] for line in fleet.events("cloud", "refused")} == {"client-0-0"}
        assert fleet.poll()
        assert fleet.processes["cloud"].starts == 1


@pytest.mark.slow
def test_the_http_driver_wants_a_certificate_too(tmp_path):
    file = FederationFile(cloud=Address(driver="http"))
    with Fleet(tmp_path / "kits", experiment("fedavg"), file=file) as fleet:
        fleet.start("cloud")
        fleet.until(lambda: fleet.events("cloud", "up"))
        upgrade = (
            b"GET /f3 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )

        def reply(kit):
            context = _context(kit)
            context.set_alpn_protocols(["http/1.1"])
            try:
                with socket.create_connection(_address(fleet), 60) as plain:
                    plain.settimeout(60)
                    with context.wrap_socket(plain) as secure:
                        secure.sendall(upgrade)
                        return secure.recv(64)
            except OSError:
                return b""

        assert b"101" in reply(fleet.kits / "client-0-0")
        assert reply(None) == b""


def _admin_kit(kit, fleet):
    """An administrator's kit, made of a client's."""
    (kit / "startup").mkdir(parents=True)
    (kit / "local").mkdir()
    for name in ("client.crt", "client.key", "rootCA.pem"):
        shutil.copy(fleet.kits / "client-0-0" / "startup" / name, kit / "startup" / name)
    admin = {
        "project_name": "sfedhp-cloud",
        "username": "client-0-0",
        "server_identity": "localhost",
        "scheme": "grpc",
        "host": "localhost",
        "port": _address(fleet)[1],
        "connection_security": "mtls",
        "uid_source": "cert",
        "with_file_transfer": True,
        "upload_dir": "transfer",
        "download_dir": "transfer",
        "client_key": "client.key",
        "client_cert": "client.crt",
        "ca_cert": "rootCA.pem",
    }
    (kit / "startup" / "fed_admin.json").write_text(json.dumps({"format_version": 1, "admin": admin}))
    resources = {"format_version": 1, "admin": {"idle_timeout": 900.0, "login_timeout": 10.0}}
    (kit / "local" / "resources.json").write_text(json.dumps(resources))
    return kit


# It logs in as FLARE's console does, then sends requests of FLARE's over the connection that it has.
INTRUDER = """
import os, sys
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.f3.message import Message
session = Session(username="client-0-0", startup_path=sys.argv[1], secure_mode=True, debug=False)
session.api.auto_login_max_tries = 1
try:
    session.try_connect(30.0)
    print("done login:", flush=True)
except Exception as error:
    print("tried login:", error, flush=True)
cell = session.api.cell.core_cell
for channel, topic, target in (
    ("hci_channel", "command", "server"),
    ("_net_manager", "stop_cell", "server"),
    ("admin", "train.deploy", "server"),
    ("task", "get_task", "server"),
    ("_net_manager", "stop_cell", "client-0-1"),
):
    reply = cell.send_request(channel, topic, target, Message(), timeout=10.0)
    code, error = reply.get_header("cn__return_code"), reply.get_header("cn__error")
    print("done request:" if code == "ok" else "tried request:", channel, topic, code, error, flush=True)
os._exit(0)
"""


def _tried(process, seconds):
    """What a process and FLARE in it say before it is ended."""
    supervisor = Supervisor([process])
    supervisor.start()
    time.sleep(seconds)
    supervisor.stop()
    texts = [process.folder / "output.txt", process.folder / "log.txt"]
    return "".join(path.read_text(errors="replace") for path in texts if path.exists())

"""Who is not let in: no certificate, another federation's, a client's kit in another role, plain text."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .memory import experiment

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

import psutil

from sfedhp.deploy.processes import Worker, Workshop, command, environment

from .processes import Fleet


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """A cloud alone, which waits for its edges, and the kits of its federation."""
    with Fleet(tmp_path_factory.mktemp("federation") / "kits", experiment()) as fleet:
        fleet.start("cloud")
        port = fleet.layout.file.cloud.port
        fleet.until(lambda: _listens(port))
        fleet.until(lambda: fleet.events("cloud", "up"))
        yield fleet


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
        with socket.create_connection(_address(fleet), 5) as plain:
            plain.settimeout(5)
            with _context(kit).wrap_socket(plain) as secure:
                return _greeting(secure)
    except OSError:
        return b""


def test_a_members_certificate_is_let_in(cloud):
    """What the other tests are held against."""
    assert _over_tls(cloud, cloud.kits / "edge-0" / "member")


def test_plain_text_is_refused(cloud):
    with socket.create_connection(_address(cloud), 5) as plain:
        plain.settimeout(5)
        assert _greeting(plain) == b""


def test_no_certificate_is_refused(cloud):
    assert _over_tls(cloud, None) == b""


def test_a_clients_certificate_is_refused_by_the_cloud(cloud):
    """A client's kit cannot be an edge: its certificate is of its edge's federation."""
    assert _over_tls(cloud, cloud.kits / "client-0-0") == b""


def test_the_server_listens_on_loopback_alone(cloud):
    found = psutil.Process(cloud.pid("cloud")).net_connections()
    hosts = {each.laddr.ip.removeprefix("::ffff:") for each in found if each.status == psutil.CONN_LISTEN}
    assert hosts == {"127.0.0.1"}


@pytest.mark.slow
def test_another_federations_kit_is_refused_and_logged(cloud, tmp_path):
    """A kit of the same names from another federation, pointed at this cloud's port."""
    with Fleet(tmp_path / "other", experiment()) as other:
        port, kit = _address(cloud)[1], other.kits / "edge-0" / "member"
        config = kit / "startup" / "fed_client.json"
        values = json.loads(config.read_text())
        values["servers"][0]["service"]["target"] = f"localhost:{port}"
        config.write_text(json.dumps(values))
        assert _over_tls(cloud, kit) == b""
        said = _tried(Worker("stranger", command(kit), kit, environment()), 25)
        assert "Successfully registered" not in said
        assert "Retrying" in said or "re-challenge" in said
        assert not cloud.events("cloud", "came")


@pytest.mark.slow
def test_a_members_name_cannot_be_taken_with_another_certificate(cloud, tmp_path):
    """edge-0's certificate under the name of edge-1: let in by TLS, refused at registration, and logged."""
    kit = tmp_path / "impostor"
    shutil.copytree(cloud.kits / "edge-0" / "member", kit)
    config = kit / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace('"edge-0"', '"edge-1"'))
    said = _tried(Worker("impostor", command(kit), kit, environment()), 25)
    assert "Successfully registered" not in said
    output = (cloud.kits / "cloud" / "output.txt").read_text(errors="replace")
    assert "failed to verify client identity" in output or "identity" in output
    assert not [line for line in cloud.events("cloud", "came") if line["member"] == "edge-1"]


@pytest.mark.slow
def test_a_members_kit_is_no_administrators(cloud, tmp_path):
    """FLARE's administration with a member's certificate: every command is refused, no code can be sent."""
    member = cloud.kits / "edge-0" / "member" / "startup"
    kit = tmp_path / "admin"
    (kit / "startup").mkdir(parents=True)
    (kit / "local").mkdir()
    for name in ("client.crt", "client.key", "rootCA.pem"):
        shutil.copy(member / name, kit / "startup" / name)
    admin = {
        "project_name": "sfedhp-cloud",
        "username": "edge-0",
        "server_identity": "localhost",
        "scheme": "grpc",
        "host": "localhost",
        "port": _address(cloud)[1],
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
    (kit / "job" / "app" / "config").mkdir(parents=True)
    (kit / "job" / "meta.json").write_text(json.dumps({"name": "job", "deploy_map": {"app": ["@ALL"]}}))
    done = subprocess.run(
        [sys.executable, "-c", INTRUDER, kit], capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout.splitlines()
    tried = [line for line in said if line.startswith("tried")]
    assert len(tried) == 6, done.stderr
    assert all("not authorized" in line for line in tried), tried
    audit = (cloud.kits / "cloud" / "audit.log").read_text()
    assert "edge-0" in audit
    assert cloud.workers["cloud"].ended is None


INTRUDER = """
import os, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
session = new_secure_session(username="edge-0", startup_kit_location=sys.argv[1], timeout=30.0)
commands = ("check_status server", "list_jobs", "sys_info server", "shutdown server", "cat server log.txt")
attempts = {words: (lambda words=words: session._do_command(words)) for words in commands}
attempts["submit"] = lambda: session.submit_job(sys.argv[1] + "/job")
for words, attempt in attempts.items():
    try:
        print("done", words, attempt(), flush=True)
    except Exception as error:
        print("tried", words, error, flush=True)
os._exit(0)
"""


def _tried(worker, seconds):
    """What a process says before it is ended."""
    workshop = Workshop([worker])
    workshop.start()
    time.sleep(seconds)
    workshop.stop()
    return (worker.folder / "output.txt").read_text(errors="replace")

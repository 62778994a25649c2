"""How the roles start: certificates that last, ports, kits in use, damaged kits, logins that fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from sfedhp.core.errors import InputError
from sfedhp.core.files import locked
from sfedhp.data import DataOptions
from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.flare.supervisor import check_port, command
from sfedhp.deploy.roles.loading import client_data_options, load_client
from sfedhp.deploy.site import read_site, write_site
from sfedhp.deploy.topology import lay_out
from tests.support.deploy_memory import experiment

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from cryptography import x509
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey

from sfedhp.deploy.flare import component as flare
from sfedhp.deploy.provisioning import make_kits
from sfedhp.runs.build import build_network
from tests.support.invoking import invoke
from tests.support.json_lines import json_lines


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("starting") / "kits"
    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        ports = []
        for each in (one, two, three):
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
    cloud, *edges = (Address("127.0.0.1", port) for port in ports)
    make_kits(lay_out(FederationFile(cloud=cloud, edges=tuple(edges)), experiment()), folder)
    return folder


@pytest.fixture
def kits(made, tmp_path):
    shutil.copytree(made, tmp_path / "kits")
    return tmp_path / "kits"


def test_certificates_are_valid_for_ten_years(made):
    files = [*made.glob("*/**/*.crt"), *made.glob("*/**/rootCA.pem")]
    sites = [path for path in files if "authorities" not in path.parts]
    assert len([path for path in sites if path.suffix == ".crt"]) == 3 + 2 + 4, "an edge has two"
    soonest = datetime.now(UTC) + timedelta(days=3649)
    for path in sites:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        root = x509.load_pem_x509_certificate((path.parent / "rootCA.pem").read_bytes())
        assert soonest < certificate.not_valid_after_utc <= root.not_valid_after_utc, path


@pytest.mark.parametrize("name", ["t", "client-0-0", "edge-0"])
def test_a_new_run_moves_nothing_in_what_is_no_clouds_kit(kits, becoming, name):
    (kits / name / "run").mkdir(parents=True)
    result = invoke("cloud", kits / name, "--new")
    assert result.exit_code == 2
    assert "is not a kit" in result.stderr or "is the kit of" in result.stderr
    assert (kits / name / "run").is_dir()
    assert not becoming


@pytest.mark.parametrize("words", [("--new",), ()])
def test_a_running_clouds_kit_is_left_lock(kits, becoming, words, monkeypatch):
    (kits / "cloud" / "run").mkdir()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(flare, "watch_stderr", lambda *_: None)
    running = flare.RoleComponent("cloud", str(kits / "cloud"))
    result = invoke("cloud", kits / "cloud", *words)
    assert result.exit_code == 2
    assert "is in use by a run that is under way" in result.stderr
    assert (kits / "cloud" / "run").is_dir()
    running._lock.close()
    assert invoke("cloud", kits / "cloud", *words).exit_code == 0
    assert (kits / "cloud" / "run-1").exists() == bool(words)


def test_a_second_process_of_a_role_ends_at_once(kits, monkeypatch, capsys):
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with locked(kits / "edge-0"):
        flare._lock_kit("bridge", kits / "edge-0").close()
        assert not codes, "an edge's other half works in the same kit"
        flare._lock_kit("edge", kits / "edge-0").close()
    assert codes == [flare.REFUSED]
    assert capsys.readouterr().out.startswith("error: ")


def test_a_cloud_gets_its_trackers(kits, becoming):
    assert invoke("cloud", kits / "cloud", "--track", "tensorboard,mlflow").exit_code == 0
    assert becoming[0][2]["SFEDHP_TRACK"] == "tensorboard,mlflow"


def pixels(folder: Path, dtype=np.uint8) -> Path:
    random = np.random.default_rng(0)
    path = folder / "mine.npz"
    np.savez(path, inputs=random.integers(0, 256, (40, 1, 28, 28)).astype(dtype), labels=np.arange(40) % 10)
    return path


def told(kit: Path, **data) -> None:
    """The kit of a federation with other data options."""
    site = read_site(kit)
    changed = replace(site.experiment, data=replace(site.experiment.data, **data))
    write_site(replace(site, experiment=changed), kit)


def test_a_clients_own_rows_are_scaled_and_cut_as_the_federations(kits, tmp_path, becoming):
    kit, source = kits / "client-0-0", pixels(tmp_path)
    told(kit, scale="none", test_share=0.5, validation_per_label=1, labels_per_client=3, rule="blocks")
    assert invoke("client", kit, f"data.source={source}").exit_code == 0
    assert invoke("client", kit, f"data.source={source}", "data.scale=unit").exit_code == 0
    first, second = (json.loads(words[2]["SFEDHP_CLIENT_DATA"]) for words in becoming)
    assert (first["scale"], first["test_share"], first["validation_per_label"]) == ("none", 0.5, 1)
    assert first["partition"] == "iid"
    assert "labels_per_client" not in first, "that is for dividing data, and these are all the client's"
    assert (second["scale"], second["test_share"]) == ("unit", 0.5)
    site = read_site(kit)
    network = build_network(site.experiment, site.shape, site.classes)
    rows, test, validation, *_ = load_client(site, network, DataOptions(**first))
    assert rows.inputs.max() > 200
    assert (int(test.sizes), int(validation.sizes), int(rows.sizes)) == (20, 10, 10)


@pytest.mark.parametrize("words", [(), ("data.scale=unit",)])
@pytest.mark.parametrize("scale", ["standard", "per_pixel"])
def test_a_federations_scale_that_needs_all_images_is_refused(kits, tmp_path, becoming, scale, words):
    kit = kits / "client-0-0"
    told(kit, scale=scale)
    result = invoke("client", kit, f"data.source={pixels(tmp_path)}", *words)
    assert result.exit_code == 2
    assert f"data.scale = '{scale}' needs the rows of all clients" in result.stderr
    assert not becoming
    floats = pixels(tmp_path, np.float32)
    result = invoke("client", kit, f"data.source={floats}", *words)
    assert result.exit_code == 2
    assert "`inputs` are float32, but the model was trained on uint8" in result.stderr


def test_a_share_of_the_experiments_data_may_have_any_scale(kits):
    told(kits / "client-0-0", scale="standard")
    site = read_site(kits / "client-0-0")
    network = build_network(site.experiment, site.shape, site.classes)
    assert load_client(site, network, None).task.inputs.min() < 0
    with pytest.raises(InputError, match="which no site has"):
        load_client(site, network, client_data_options(DataOptions(), str(pixels(kits))))


@pytest.mark.parametrize(("role", "half"), [("cloud", "."), ("edge", "server")])
def test_a_port_that_is_taken_is_refused(kits, becoming, role, half):
    kit = kits / ("cloud" if role == "cloud" else "edge-0")
    config = json.loads((kit / half / "startup" / "fed_server.json").read_text())
    port = int(config["servers"][0]["service"]["target"].partition(":")[2])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does
        other.bind(("127.0.0.1", port))
        other.listen()
        result = invoke(role, kit)
        assert result.exit_code == 2
        assert f"The server cannot listen on port {port} (Address already in use)" in result.stderr
        assert not becoming
    assert invoke(role, kit).exit_code == 0
    assert len(becoming) == 1


def test_a_port_is_tried_where_flare_listens(kits, monkeypatch):
    tried = []

    class Trial(socket.socket):
        def bind(self, address):
            tried.append(address)

    monkeypatch.setattr("sfedhp.deploy.flare.supervisor.socket.socket", Trial)
    path = kits / "cloud" / "startup" / "fed_server.json"
    for host in ("localhost", "127.0.0.3", "cloud.example.org", "10.0.0.7"):
        config = json.loads(path.read_text())
        config["servers"][0]["service"]["target"] = f"{host}:9000"
        path.write_text(json.dumps(config))
        check_port(kits / "cloud")
    assert tried == [("127.0.0.1", 9000), ("127.0.0.3", 9000), ("", 9000), ("", 9000)]


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("client-0-0", "startup/fed_client.json", '{"client": '),
        ("client-0-0", "startup/fed_client.json", "{}"),
        ("client-0-0", "local/resources.json", "[]"),
        ("client-0-0", "local/resources.json", "[" * 100_000),
        ("cloud", "local/resources.json", None),
        ("cloud", "startup/fed_server.json", '{"servers": []}'),
        ("cloud", "startup/fed_server.json", ""),
    ],
)
def test_a_damaged_kit_ends_in_a_sentence(kits, becoming, name, file, text):
    if text is None:
        (kits / name / file).unlink()
    else:
        (kits / name / file).write_text(text)
    result = invoke(name.partition("-")[0], kits / name)
    assert result.exit_code == 2
    assert f"{file} is damaged (" in result.stderr
    assert result.stderr.endswith("copy the kit again.\n")
    assert not becoming


class Context:
    """FLARE's, after a login."""

    def __init__(self, token):
        self.token = token

    def get_prop(self, name):
        assert name == FLContextKey.CLIENT_TOKEN
        return self.token


@pytest.mark.parametrize(("role", "folder"), [("client", "run"), ("bridge", "run/bridge")])
def test_a_member_that_is_not_let_in_tries_again(kits, monkeypatch, role, folder):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(flare, "_LOGIN_PAUSE", 0.0)
    monkeypatch.delenv(flare._TRIES, raising=False)
    started = []
    monkeypatch.setattr(os, "execve", lambda *words: started.append(words))
    component = flare.RoleComponent(role, str(kits / "client-0-0"))
    after = EventType.AFTER_CLIENT_REGISTER
    component.handle_event(after, Context("a token"))
    assert not started
    component.handle_event(after, Context(None))
    ((program, words, env),) = started
    assert (program, words) == (sys.executable, sys.orig_argv)
    assert env[flare._TRIES] == "2"
    monkeypatch.setenv(flare._TRIES, str(flare._LOGINS))
    component.handle_event(after, Context(None))
    assert len(started) == 1, "the service manager's turn"
    log = json_lines(kits / "client-0-0" / folder / "log.jsonl")
    assert [(line["event"], line["times"]) for line in log] == [
        ("login failed", 1),
        ("login failed", flare._LOGINS),
    ]


def test_a_member_is_started_again_by_the_words_it_was_started_with(kits):
    """An absolute program: FLARE goes to another folder before the login."""
    assert Path(command(kits / "client-0-0")[0]).is_absolute()

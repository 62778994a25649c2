"""A federation that lives for years: certificates are renewed, revoked and approved, and seats are added."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.site import read_site, write_site
from sfedhp.deploy.topology import lay_out
from tests.support.deploy_memory import experiment

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sfedhp.deploy import renewal
from sfedhp.deploy.added_seat import add_seat
from sfedhp.deploy.certificates import (
    RevocationList,
    expiry,
    expiry_warning,
    new_key,
    read_certificate,
    serial,
    signing_request,
)
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.flare.component import RoleComponent
from sfedhp.deploy.provisioning import make_kits
from sfedhp.deploy.renewal import approve, renew, revoke
from sfedhp.deploy.revocations import Revocations
from tests.support.file_bytes import file_bytes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("renewal") / "kits"
    make_kits(lay_out(FederationFile(), experiment()), folder)
    return folder


@pytest.fixture
def kits(made, tmp_path):
    return shutil.copytree(made, tmp_path / "kits")


def certificate(kits, name, file="client.crt"):
    return read_certificate(kits / name / "startup" / file)


def issued_by(kits, certificate, root):
    certificate.verify_directly_issued_by(read_certificate(kits / root / "startup" / "rootCA.pem"))


def test_a_renewed_kit_has_a_new_key_of_the_same_name_and_authority(kits):
    old = certificate(kits, "client-0-1")
    others = {path: path.read_bytes() for path in kits.rglob("*.crt") if "client-0-1" not in path.parts}
    files = renew(kits, "client-0-1", 100)
    assert {path.name for path in files} == {"client.crt", "client.key"}
    new = certificate(kits, "client-0-1")
    assert new.subject == old.subject
    assert new.serial_number != old.serial_number
    issued_by(kits, new, "edge-0/server")
    key = serialization.load_pem_private_key(
        (kits / "client-0-1" / "startup" / "client.key").read_bytes(), password=None
    )
    assert key.public_key() == new.public_key() != old.public_key()
    assert (kits / "client-0-1" / "startup" / "client.key").stat().st_mode & 0o777 == 0o600
    assert abs(new.not_valid_after_utc - datetime.now(UTC) - timedelta(days=100)) < timedelta(hours=1)
    assert all(path.read_bytes() == before for path, before in others.items()), "the others need nothing"


def test_an_edge_is_renewed_on_both_sides_and_keeps_its_hosts(kits):
    before = certificate(kits, "edge-0/server", "server.crt").extensions
    assert len(renew(kits, "edge-0", 100)) == 4
    server = certificate(kits, "edge-0/server", "server.crt")
    names = x509.SubjectAlternativeName
    assert server.extensions.get_extension_for_class(names) == before.get_extension_for_class(names)
    issued_by(kits, server, "client-0-0")
    issued_by(kits, certificate(kits, "edge-0/member"), "cloud")
    assert renew(kits, "cloud", 10**6)
    root = read_certificate(kits / "cloud" / "startup" / "rootCA.pem")
    assert certificate(kits, "cloud", "server.crt").not_valid_after_utc == root.not_valid_after_utc


def test_the_30_days_before_a_certificate_expires(kits):
    assert expiry_warning(kits / "client-0-0") is None
    renew(kits, "client-0-0", 31)
    assert expiry_warning(kits / "client-0-0") is None
    renew(kits, "client-0-0", 29)
    until = expiry(kits / "client-0-0")
    assert until is not None
    assert f"expires on {until:%Y-%m-%d}" in str(expiry_warning(kits / "client-0-0"))
    assert expiry(kits / "edge-0") is not None
    assert expiry(kits / "cloud" / "local") is None


def test_an_authority_that_ends_is_not_renewed(tmp_path, monkeypatch):
    kits = tmp_path / "kits"
    monkeypatch.setattr("sfedhp.deploy.provisioning._DAYS", 20)
    make_kits(lay_out(FederationFile(), experiment("fedavg")), kits)
    said = str(expiry_warning(kits / "client-0-0"))
    assert "its authority can make none that is valid longer: make the kits of a new federation" in said
    renew(kits, "client-0-0", 10)
    assert "`sfedhp provision --renew client-0-0`" in str(expiry_warning(kits / "client-0-0"))

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=21)

    monkeypatch.setattr("sfedhp.deploy.certificates.datetime", Later)
    with pytest.raises(InputError, match=r"The authority sfedhp-cloud expired on 20..-..-..: make the kits"):
        renew(kits, "client-0-0", 10)
    assert "expired on" in str(expiry_warning(kits / "client-0-0"))


class Time:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_revoked_certificate_is_refused_at_once_by_every_server(kits, tmp_path):
    clock = Time()
    held = serial(certificate(kits, "client-0-1"))
    servers = [
        Revocations(kits / name, EventLog(tmp_path / name, name), clock)
        for name in ("cloud", "edge-0", "edge-1")
    ]
    assert not any(server.refuses("client-0-1", lambda name: held) for server in servers)
    written = revoke(kits, "client-0-1")
    assert {path.parent.name for path in written} == {"kits", "cloud", "edge-0", "edge-1"}
    clock.now += 1
    for server in servers:
        assert server.refuses("client-0-1", lambda name: held)
        assert server.refuses("client-0-1", lambda name: None), "a driver that does not tell"
        assert not server.refuses("client-0-0", lambda name: "1")
    renew(kits, "client-0-1", 100)
    fresh = serial(certificate(kits, "client-0-1"))
    assert not servers[1].refuses("client-0-1", lambda name: fresh), "the seat itself is not lost"
    revoke(kits, "edge-1")
    clock.now += 1
    assert servers[0].refuses("client-0-1", lambda name: held), "the list grows"
    assert servers[0].refuses("edge-1", lambda name: serial(certificate(kits, "edge-1/member")))
    with pytest.raises(InputError, match="no server that could reject it"):
        revoke(kits, "cloud")


def test_an_edge_takes_the_list_from_the_cloud_and_from_no_one_else(kits, tmp_path):
    revoke(kits, "client-0-1")
    values = json.loads((kits / "revoked.json").read_text())
    (kits / "edge-0" / "revoked.json").unlink()
    held = serial(certificate(kits, "client-0-1"))
    edge = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"))
    changes: list[dict[str, Any]] = [{"version": 2}, {"serials": {}}, {"version": "x"}, {"signature": "?"}]
    for wrong in (None, [], {"version": 2}, *(values | change for change in changes)):
        edge.adopt(wrong)
        assert not edge.refuses("client-0-1", lambda name: held)
    edge.adopt(values)
    assert edge.refuses("client-0-1", lambda name: held)
    again = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"))
    assert again.refuses("client-0-1", lambda name: held), "it is kept over a restart"
    (kits / "edge-0" / "revoked.json").write_text("no JSON")
    damaged = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"))
    assert not damaged.refuses("client-0-1", lambda name: held)
    assert "trouble" in (tmp_path / "log" / "log.jsonl").read_text()


@pytest.mark.parametrize("content", ["no JSON", "[" * 100_000, '{"version": 9, "serials": {}}'])
def test_a_server_does_not_start_with_a_damaged_list(kits, tmp_path, content, monkeypatch, capsys):
    """It would let revoked members in. One that runs keeps the list that it has."""
    revoke(kits, "client-0-1")
    held = serial(certificate(kits, "client-0-1"))
    clock = Time()
    running = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"), clock)
    running.check()
    assert running.refuses("client-0-1", lambda name: held)
    (kits / "edge-0" / "revoked.json").write_text(content)
    clock.now += 1
    assert running.refuses("client-0-1", lambda name: held)
    assert "trouble" in (tmp_path / "log" / "log.jsonl").read_text()
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def ended(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ended)
    with pytest.raises(SystemExit, match="2"):
        RoleComponent("edge", str(kits / "edge-0"))
    said = capsys.readouterr().out
    assert said.startswith("error: ")
    assert "revoked" in said


def test_certificates_that_were_renewed_before_are_revoked_too(kits, tmp_path):
    """A member may have kept its old keys, and they are valid for ten years."""
    key = new_key()
    request = tmp_path / "client-0-1.csr"
    request.write_bytes(signing_request("client-0-1", key))
    held = [serial(certificate(kits, "client-0-1"))]
    for change in (
        lambda: renew(kits, "client-0-1", 100),
        lambda: renew(kits, "client-0-1", 100),
        lambda: approve(kits, request, 100),
    ):
        change()
        held.append(serial(certificate(kits, "client-0-1")))
    revoke(kits, "client-0-1")
    edge = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"))
    assert len(set(held)) == 4
    for number in held:
        assert edge.refuses("client-0-1", {"client-0-1": number}.get)
        assert edge.holder(number) == "client-0-1"
    renew(kits, "client-0-1", 100)
    assert not edge.refuses("client-0-1", lambda name: serial(certificate(kits, "client-0-1")))


def test_a_list_whose_permissions_are_corrected_is_read_again(kits, tmp_path, monkeypatch):
    """As after a copy by another user: nothing else about the file changes."""
    revoke(kits, "client-0-1")
    clock, path = Time(), kits / "edge-0" / "revoked.json"
    edge = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"), clock)

    def denied(self):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as closed:
        closed.setattr("pathlib.Path.read_bytes", denied)
        assert not edge.refuses("client-0-1", lambda name: None)
    assert "Permission denied" in (tmp_path / "log" / "log.jsonl").read_text()
    path.chmod(0o644)
    clock.now += 1
    assert edge.refuses("client-0-1", lambda name: None)


def test_a_list_grows_from_the_newest_that_is_in_any_kit(kits, tmp_path):
    """Servers ignore a list that is not newer than their own."""
    held = serial(certificate(kits, "client-0-0"))
    for name in ("client-0-0", "client-1-0"):
        revoke(kits, name)
    (kits / "revoked.json").unlink()
    revoke(kits, "client-0-1")
    values = json.loads((kits / "revoked.json").read_text())
    assert values["version"] == 3
    assert held in values["serials"]
    (kits / "edge-1" / "revoked.json").write_text("no JSON")
    with pytest.raises(InputError, match=r"edge-1/revoked.json cannot be read"):
        revoke(kits, "client-0-1")


def at_once(*works: Callable[[], Any]) -> None:
    """Run functions in threads that start together; raise what one of them raised."""
    begin = Barrier(len(works))

    def run(work: Callable[[], Any]) -> None:
        begin.wait()
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        for each in [pool.submit(run, work) for work in works]:
            each.result()


def test_two_revocations_at_once_are_both_in_the_list(kits, monkeypatch):
    names = ("client-0-0", "client-0-1")

    def slow(path, text):
        time.sleep(0.1)  # the other one reads the old list meanwhile, if it may
        write_text(path, text)

    monkeypatch.setattr(renewal, "write_text", slow)
    at_once(*(partial(revoke, kits, name) for name in names))
    values = json.loads((kits / "cloud" / "revoked.json").read_text())
    assert set(values["serials"].values()) == set(names)
    assert values["version"] == 2


def test_an_old_list_does_not_replace_a_newer_one(kits, tmp_path):
    revoke(kits, "client-0-0")
    old = json.loads((kits / "revoked.json").read_text())
    revoke(kits, "client-0-1")
    edge = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"))
    edge.adopt(old)
    assert edge.refuses("client-0-1", lambda name: None)
    assert RevocationList().version == 0


def test_a_key_that_never_leaves_its_machine(kits, tmp_path):
    key = new_key()
    request = tmp_path / "client-0-1.csr"
    request.write_bytes(signing_request("client-0-1", key))
    path = approve(kits, request, 100)
    assert path == kits / "client-0-1" / "startup" / "client.crt"
    assert read_certificate(path).public_key() == key.public_key()
    issued_by(kits, read_certificate(path), "edge-0/server")
    assert not path.with_suffix(".key").exists()
    state = json.loads((kits / "authorities" / "sfedhp-edge-0" / "state" / "cert.json").read_text())
    assert "pri_key" not in state["client-0-1"]
    for name, file, said in (
        ("client-7-7", "client-7-7", "not a kit"),
        ("cloud", "cloud", "member of no server"),
        ("../kits/client-0-0", "client-0-0", "is a request for ../kits"),
        ("client\x1b[2J", "client", r"is a request for client.x1b"),
    ):
        other = tmp_path / f"{file}.csr"
        other.write_bytes(signing_request(name, key))
        with pytest.raises(InputError, match=said):
            approve(kits, other, 100)
    before = certificate(kits, "edge-0/member")
    request.write_bytes(signing_request("edge-0", key))
    with pytest.raises(InputError, match=r"is a request for edge-0: if its sender may have that seat, name"):
        approve(kits, request, 100)
    assert certificate(kits, "edge-0/member") == before
    request.write_text("nonsense")
    with pytest.raises(InputError, match="not a request"):
        approve(kits, request, 100)


def test_a_seat_is_added_and_no_one_else_needs_a_new_kit(kits):
    before = file_bytes(kits)
    kit, *changed = add_seat(FederationFile(), kits, "edge-1")
    assert kit == kits / "client-1-2"
    assert set(changed) == {kits / "cloud" / "sfedhp.json", kits / "edge-1" / "sfedhp.json"}
    client, edge, cloud = (read_site(kits / name) for name in ("client-1-2", "edge-1", "cloud"))
    assert edge.below == ["client-1-0", "client-1-1", "client-1-2"]
    assert cloud.clients_of(1) == edge.below
    assert cloud.below == ["edge-0", "edge-1"]
    assert (client.role, client.edge, client.seat, client.client) == ("client", 1, 2, 4)
    assert client.config == edge.config == read_site(kits / "client-0-0").config
    issued_by(kits, certificate(kits, "client-1-2"), "edge-1/server")
    expected = {*changed, kits / "authorities" / "sfedhp-edge-1" / "state" / "cert.json"}
    assert {path for path, data in before.items() if path.read_bytes() != data} <= expected
    assert all(path.stat().st_mode & 0o077 == 0 for path in kit.rglob("*"))
    assert add_seat(FederationFile(), kits, "edge-1")[0].name == "client-1-3"
    assert read_site(add_seat(FederationFile(), kits, "edge-0")[0]).client == 6
    with pytest.raises(InputError, match="name an edge"):
        add_seat(FederationFile(), kits, "cloud")
    with pytest.raises(InputError, match="not a kit"):
        add_seat(FederationFile(), kits, "edge-7")


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("writer", ["write_site", "write_readme", "make_private", "Authority.write"])
def test_a_disk_that_is_full_while_a_seat_is_added_can_be_emptied(kits, monkeypatch, writer):
    before = {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()}
    with monkeypatch.context() as full:
        full.setattr(f"sfedhp.deploy.added_seat.{writer}", full_disk)
        with pytest.raises(InputError, match=r"cannot be changed \(No space left on device\): correct"):
            add_seat(FederationFile(), kits, "edge-1")
    assert {path: path.read_bytes() for path in kits.rglob("*") if path.is_file()} == before
    assert {path.name for path in kits.iterdir()} == {path.relative_to(kits).parts[0] for path in before}
    assert add_seat(FederationFile(), kits, "edge-1")[0].name == "client-1-2"


def test_a_full_disk_does_not_cost_the_authority_its_key(kits, monkeypatch):
    state = kits / "authorities" / "sfedhp-edge-1" / "state" / "cert.json"
    before = state.read_bytes()

    def persist(self):
        with open(os.path.join(self.state_dir, "cert.json"), "w") as file:
            file.write('{"')
            full_disk()

    monkeypatch.setattr("nvflare.lighter.impl.cert._CertState.persist", persist)
    with pytest.raises(InputError, match="No space left"):
        add_seat(FederationFile(), kits, "edge-1")
    assert state.read_bytes() == before


@pytest.mark.parametrize("written", [0, 1])
def test_a_command_that_was_killed_between_two_servers_can_be_repeated(kits, monkeypatch, written):
    """The new kit is there, and neither server knows it, or only the edge does."""
    calls: list[Any] = []

    def killed(site, kit):
        if site.role != "client" and len(calls) == written:
            raise KeyboardInterrupt
        calls.extend([kit] if site.role != "client" else [])
        write_site(site, kit)

    with monkeypatch.context() as dying:
        dying.setattr("sfedhp.deploy.added_seat.write_site", killed)
        with pytest.raises(KeyboardInterrupt):
            add_seat(FederationFile(), kits, "edge-1")
    made = {path: path.read_bytes() for path in (kits / "client-1-2").rglob("*") if path.is_file()}
    assert add_seat(FederationFile(), kits, "edge-1")[0].name == "client-1-2"
    assert {path: path.read_bytes() for path in made} == made, "the same kit"
    assert read_site(kits / "edge-1").added == read_site(kits / "cloud").added == ("client-1-2",)
    assert read_site(add_seat(FederationFile(), kits, "edge-1")[0]).seat == 3


def test_what_a_killed_command_left_is_removed_by_the_next(kits):
    left = [
        kits / ".client-1-2.999999999.sfedhp-tmp" / "client-1-2" / "startup" / "client.key",
        kits / "client-0-0" / "startup" / ".client.key.999999999.sfedhp-tmp" / "client.key",
        kits / "authorities" / "sfedhp-cloud" / "state" / ".cert.json.999999999.sfedhp-tmp" / "cert.json",
    ]
    others = [kits / ".notes" / "client.key", kits / "cloud" / "run" / ".x.999999999.sfedhp-tmp" / "model"]
    for path in (*left, *others):
        path.parent.mkdir(parents=True)
        path.write_text("secret")
    renew(kits, "client-1-1", 100)
    assert not any(path.parent.exists() for path in left)
    assert all(path.exists() for path in others)


def test_kits_of_running_roles_are_changed_and_read(kits, monkeypatch):
    """A role creates and removes folders in its kit, which vanish while another process lists them."""
    busy = [kits / name / "run" / "spool" for name in ("cloud", "edge-0", "client-0-1")]
    for folder in busy:
        folder.mkdir(parents=True)
    scandir = os.scandir

    def vanishing(path=".", *rest):
        if not isinstance(path, int) and Path(path) in busy:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path, *rest)

    monkeypatch.setattr(os, "scandir", vanishing)
    renew(kits, "client-0-1", 10)
    revoke(kits, "client-0-1")
    for name in ("cloud", "edge-0", "client-0-1"):
        assert expiry(kits / name) is not None
    assert "expires" in str(expiry_warning(kits / "client-0-1"))


def test_two_seats_added_at_once_are_two_kits(kits):
    at_once(*[partial(add_seat, FederationFile(), kits, "edge-1")] * 2)
    for name in ("client-1-2", "client-1-3"):
        assert (kits / name / "startup" / "client.key").exists()
        issued_by(kits, certificate(kits, name), "edge-1/server")
    assert read_site(kits / "edge-1").added == read_site(kits / "cloud").added == ("client-1-2", "client-1-3")


def test_a_kit_needs_the_authority_that_made_the_others(kits):
    """With an authority of its own it could connect to nobody."""
    shutil.rmtree(kits / "authorities")
    with pytest.raises(InputError, match=r"cert.json cannot be read \(No such file or directory\): give the"):
        add_seat(FederationFile(), kits, "edge-1")
    assert not (kits / "client-1-2").exists()
    assert not (kits / "authorities").exists()
    assert read_site(kits / "edge-1").added == ()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"root_cert": 1}', '{"root_cert": "x", "root_pri_key": "y"}']
)
def test_a_damaged_authority_is_named(kits, content):
    (kits / "authorities" / "sfedhp-edge-1" / "state" / "cert.json").write_text(content)
    with pytest.raises(InputError, match=r"cert.json is damaged: restore it from a copy"):
        renew(kits, "client-1-0", 100)
    with pytest.raises(InputError, match=r"cert.json is damaged: restore it from a copy"):
        add_seat(FederationFile(), kits, "edge-1")


def test_a_folder_that_is_not_the_kit_of_this_client_is_named(kits):
    (kits / "client-1-2" / "startup").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(InputError, match=r"client-1-2 is already there, .*: remove it and repeat"):
            add_seat(FederationFile(), kits, "edge-1")
        shutil.copy(kits / "client-1-0" / "sfedhp.json", kits / "client-1-2")
    assert sorted(path.name for path in (kits / "client-1-2").iterdir()) == ["sfedhp.json", "startup"]


def test_kits_that_fail_take_nothing_of_others_with_them(tmp_path, monkeypatch):
    """Another command, or a person, put files into the folder or beside it meanwhile."""
    layout, folder = lay_out(FederationFile(), experiment()), tmp_path / "new" / "kits"

    def fail(*_):
        (folder / "notes.txt").write_text("mine")
        (folder.parent / "other").mkdir()
        full_disk()

    monkeypatch.setattr("sfedhp.deploy.provisioning.write_readme", fail)
    with pytest.raises(InputError, match="No space left on device"):
        make_kits(layout, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt"]
    assert (folder.parent / "other").is_dir()


def test_two_commands_do_not_make_kits_in_one_folder(tmp_path):
    layout, folder, refused = lay_out(FederationFile(), experiment()), tmp_path / "kits", []

    def make():
        try:
            make_kits(layout, folder)
        except InputError as error:
            refused.append(str(error))

    at_once(make, make)
    (message,) = refused
    assert message.startswith(f"{folder} is not empty: choose another folder for the kits with --out")
    assert all(certificate(folder, site.name) for site in layout.clients)


def test_a_seat_is_added_to_a_cloud_of_two_tiers(tmp_path):
    kits = tmp_path / "kits"
    make_kits(lay_out(FederationFile(), experiment("fedavg")), kits)
    kit, *changed = add_seat(FederationFile(), kits, "cloud")
    cloud, client = read_site(kits / "cloud"), read_site(kit)
    assert cloud.below == ["client-0-0", "client-0-1", "client-1-0", "client-1-1", "client-1-2"]
    assert cloud.below[client.seat] == client.name
    assert cloud.clients[client.seat] == client.client == 4
    assert changed == [kits / "cloud" / "sfedhp.json"]


def test_a_server_listens_elsewhere_than_its_members_connect(tmp_path):
    address = Address("cloud.example.org", 443, "127.0.0.1", 9443, "http")
    make_kits(lay_out(FederationFile(cloud=address), experiment("fedavg")), tmp_path / "kits")
    server = json.loads((tmp_path / "kits" / "cloud" / "startup" / "fed_server.json").read_text())["servers"][
        0
    ]
    member = json.loads((tmp_path / "kits" / "client-0-0" / "startup" / "fed_client.json").read_text())
    assert server["service"] == {"target": "localhost:9443", "scheme": "http"}
    assert member["servers"][0]["service"] == {"target": "cloud.example.org:443", "scheme": "http"}


def test_a_member_is_revoked_without_the_certificate_in_its_kit(kits):
    """The authority knows every certificate that it made."""
    held = {serial(certificate(kits, "client-0-1"))}
    renew(kits, "client-0-1", 100)
    held.add(serial(certificate(kits, "client-0-1")))
    (kits / "client-0-1" / "startup" / "client.crt").unlink()
    edge = serial(certificate(kits, "edge-0/member"))
    shutil.rmtree(kits / "edge-0" / "member")
    revoke(kits, "client-0-1/")
    revoke(kits, "edge-0")
    values = json.loads((kits / "cloud" / "revoked.json").read_text())
    assert values["serials"] == {**dict.fromkeys(held, "client-0-1"), edge: "edge-0"}


def test_no_list_is_signed_without_the_member(kits):
    path = kits / "client-0-1" / "startup" / "client.crt"
    state = kits / "authorities" / "sfedhp-edge-0" / "state" / "cert.json"
    values = json.loads(state.read_text())
    del values["client-0-1"]
    state.write_text(json.dumps(values))
    kept = path.rename(path.with_suffix(".kept"))
    with pytest.raises(InputError, match=r"has no certificate of client-0-1 that could be revoked: restore"):
        revoke(kits, "client-0-1")
    assert not (kits / "revoked.json").exists()
    kept.rename(path)
    revoke(kits, "client-0-1")
    serials = json.loads((kits / "revoked.json").read_text())["serials"]
    assert serials == {serial(read_certificate(path)): "client-0-1"}
    shutil.rmtree(state.parent)
    with pytest.raises(InputError, match=r"sfedhp-edge-0/state/cert.json cannot be read"):
        revoke(kits, "client-0-0")


@pytest.mark.parametrize(("name", "lost"), [("client-0-1", "startup/client.crt"), ("edge-0", "member")])
def test_a_kit_without_a_certificate_is_not_renewed(kits, name, lost):
    place = kits / name / lost
    place.unlink() if place.is_file() else shutil.rmtree(place)
    before = file_bytes(kits)
    with pytest.raises(InputError, match=r"client.crt is not a certificate \(.*No such file.*: copy the kit"):
        renew(kits, name, 100)
    assert file_bytes(kits) == before


@pytest.mark.parametrize("authority", ["sfedhp-cloud", "sfedhp-edge-0"])
def test_an_edge_is_renewed_on_both_sides_or_on_none(kits, authority):
    shutil.rmtree(kits / "authorities" / authority)
    before = file_bytes(kits)
    with pytest.raises(InputError, match=rf"{authority}/state/cert.json cannot be read"):
        renew(kits, "edge-0", 100)
    assert file_bytes(kits) == before


@pytest.mark.parametrize(("algorithm", "server"), [("sfedhp", "edge-0"), ("fedavg", "cloud")])
def test_an_added_seat_knows_no_one_elses_names(tmp_path, algorithm, server):
    kits = tmp_path / "kits"
    make_kits(lay_out(FederationFile(), experiment(algorithm)), kits)
    site = read_site(kits / server)
    names = {name: f"Hospital {name}" for name in (server, *site.below)}
    write_site(replace(site, names=names, monitor=9300), kits / server)
    kit, *_ = add_seat(FederationFile(), kits, server)
    assert (read_site(kit).names, read_site(kit).monitor) == ({}, 0)
    assert b"Hospital" not in b"".join(file_bytes(kit).values())
    assert read_site(kits / server).names == names


def test_new_kits_and_seats_are_valid_for_the_days_that_were_asked_for(tmp_path):
    kits = tmp_path / "kits"
    make_kits(lay_out(FederationFile(), experiment("fedavg")), kits, 30)
    kit, *_ = add_seat(FederationFile(), kits, "cloud", 20)
    for folder, days in ((kits / "cloud", 30), (kits / "client-0-0", 30), (kit, 20)):
        until = expiry(folder)
        assert until is not None
        assert abs(until - datetime.now(UTC) - timedelta(days=days)) < timedelta(hours=1)


def test_a_file_that_is_older_than_the_list_in_use_is_said_to_be(kits, tmp_path):
    clock, path = Time(), kits / "edge-0" / "revoked.json"
    revoke(kits, "client-0-0")
    old = path.read_text()
    revoke(kits, "client-0-1")
    edge = Revocations(kits / "edge-0", EventLog(tmp_path / "log", "edge-0"), clock)
    assert edge.refuses("client-0-1", lambda name: None)
    write_text(path, old)
    for _ in range(2):
        clock.now += 1
        assert edge.refuses("client-0-1", lambda name: None)
    said = [line for line in (tmp_path / "log" / "log.jsonl").read_text().splitlines() if "older" in line]
    assert len(said) == 1
    assert "has version 1 of the list, which is older than version 2" in said[0]

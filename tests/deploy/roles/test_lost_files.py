"""Files of a run that are missing, damaged or cannot be written: nothing is lost silently, nothing jams."""

from __future__ import annotations

import errno
import logging
import shutil

import pytest
import torch

from sfedhp.core.errors import InputError
from sfedhp.core.types import Clock
from sfedhp.deploy.event_log import EventLog, read_status
from sfedhp.deploy.messaging.protocol import Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.spool import key_of
from sfedhp.deploy.messaging.transport import SERVER
from sfedhp.deploy.roles.cloud import CloudRole
from sfedhp.deploy.roles.cloud_folder import CloudFolder
from sfedhp.wire import encode
from tests.support.deploy_memory import Federation, experiment
from tests.support.file_bytes import file_bytes
from tests.support.json_lines import json_lines
from tests.support.patient_clock import wait_for


@pytest.fixture(scope="module")
def over(tmp_path_factory):
    """The kits of a run of two rounds that is over."""
    federation = Federation(tmp_path_factory.mktemp("over"), experiment(rounds=2))
    federation.start()
    federation.finish()
    return federation


@pytest.fixture
def again(over, tmp_path):
    """The same kits, to be started again."""
    return Federation(shutil.copytree(over.folder, tmp_path / "kits"), experiment(rounds=2))


def test_a_cloud_whose_checkpoints_are_missing_refuses_and_changes_nothing(again, monkeypatch):
    monkeypatch.setattr(CloudRole, "_run_rounds", lambda *_: pytest.fail("it began again"))
    run = again.folder / "cloud" / "run"
    shutil.rmtree(run / "checkpoint")
    kept = file_bytes(run)
    with pytest.raises(InputError) as error:
        again._role("cloud").work()
    assert str(error.value) == (
        f"There is no checkpoint in {run / 'checkpoint'}, but {run} has records of 2 rounds: restore one "
        f"from a copy, or start a new run with `sfedhp cloud {run.parent} --new`, which keeps this one "
        "beside it."
    )
    assert file_bytes(run) == kept


@pytest.mark.parametrize("lost", ["checkpoint", "history.jsonl", None])
def test_a_cloud_whose_id_is_missing_refuses_and_changes_nothing(again, lost):
    run = again.folder / "cloud" / "run"
    (run / "run.json").unlink()
    if lost == "checkpoint":
        shutil.rmtree(run / lost)
    elif lost:
        (run / lost).unlink()
        (run / "ledger.jsonl").unlink()
    kept = file_bytes(run)
    with pytest.raises(InputError) as error:
        again._role("cloud")
    assert str(error.value) == (
        f"{run / 'run.json'}, with the id of the run, is missing beside finished rounds: restore it from a "
        f"copy, or start a new run with `sfedhp cloud {run.parent} --new`, which keeps this one."
    )
    assert file_bytes(run) == kept


def test_a_cloud_killed_before_its_first_checkpoint_resumes(again):
    """The first row is written before the first checkpoint; a second one is not."""
    run = again.folder / "cloud" / "run"
    shutil.rmtree(run / "checkpoint")
    for name in ("history.jsonl", "ledger.jsonl"):
        first, second = (run / name).read_bytes().splitlines(keepends=True)
        (run / name).write_bytes(first + second[:9])  # cut off
    again.start()
    again.finish()
    assert [row["round"] for row in again.rows()] == [1, 2]


def test_a_cloud_without_a_finished_round_starts(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=1))
    first = federation._role("cloud")._members.run
    run = tmp_path / "cloud" / "run"
    (run / "history.jsonl").write_bytes(b"")
    (run / "checkpoint").mkdir()
    assert federation._role("cloud")._members.run == first
    (run / "run.json").unlink()
    cloud = federation._role("cloud")
    assert cloud._members.run != first
    assert cloud._folder.restore(cloud._cloud.served)[0] == 0


def test_every_status_that_roles_write_can_be_read(over):
    for site in over.layout.sites:
        status = read_status(over.folder / site.name / "run")
        assert status is not None, site.name
        assert status["finished"]


class Uplink:
    """The uplink of an edge that is there alone, and a cloud that gives it a request once."""

    def __init__(self, folder):
        self.federation = Federation(folder, experiment(rounds=1))
        self.cloud = self.federation.exchange.box("cloud", SERVER)
        config = self.federation.layout.edges[0].config
        self.request = Envelope(Kind.WORK, "a" * 16, config, 0, Clock(1), parts=(encode(torch.ones(3)),))
        self.key = key_of(self.request)
        self.federation.start("edge-0/bridge")
        self.spool = self.federation.roles["edge-0/bridge"]._spool
        self.send(self.request)
        wait_for(lambda: self.spool.requested(self.key))

    def send(self, request):
        self.cloud.send("edge-0", encode_message(request))

    def replies(self):
        found = []
        while not self.cloud.inbox.empty():
            message = decode_message(self.cloud.inbox.get()[1])
            found += [message] if message.kind is not Kind.HELLO else []
        return found

    def finish(self):
        end = Envelope(Kind.FAREWELL, self.request.run, self.request.config, 0, Clock(1))
        self.send(end)
        wait_for(lambda: self.spool.requested(key_of(end)))
        self.spool.finish(key_of(end), self.encoded(Kind.BYE))
        self.federation.finish()

    def encoded(self, kind=Kind.REPLY, **content):
        return encode_message(
            Envelope(kind, self.request.run, self.request.config, 0, self.request.clock, **content)
        )


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_request_is_put_in_again(tmp_path, at):
    uplink = Uplink(tmp_path)
    path = uplink.spool._path("question", uplink.key)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert uplink.spool.newest() is None
    wait_for(lambda: uplink.spool.newest() == (uplink.key, uplink.request))
    uplink.finish()


def test_a_damaged_reply_is_not_sent_and_computed_again(tmp_path):
    uplink = Uplink(tmp_path)
    reply = uplink.encoded(weight=2.0, parts=(encode(torch.ones(3)),))
    uplink.spool.finish(uplink.key, reply[:-1] + bytes([reply[-1] ^ 1]))
    wait_for(lambda: uplink.spool.newest() is not None)
    assert uplink.replies() == []
    uplink.spool.finish(uplink.key, reply)
    wait_for(lambda: [encode_message(each) for each in uplink.replies()] == [reply])
    uplink.finish()


@pytest.fixture
def component(monkeypatch):
    """The module of FLARE's component, whose processes do not end here."""
    pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")
    from sfedhp.deploy.flare import component

    monkeypatch.setattr(component, "_GRACE", 0.0)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    return component


class Broken:
    """A role and its transport; the role ends with an error of the disk."""

    def __init__(self, error, before=lambda: None):
        self.error, self.before = error, before

    def work(self):
        self.before()
        raise self.error

    def bytes_by_kind(self):
        return {}


def ended(component, monkeypatch, role, kit, broken):
    codes: list[int] = []
    monkeypatch.setattr(component, "_role", lambda *_: broken)
    component.run_role(role, kit, broken, None, codes.append)
    return codes


def test_a_full_disk_ends_a_role_in_a_sentence(component, monkeypatch, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    path = tmp_path / "run" / "history.jsonl"
    full = OSError(errno.ENOSPC, "No space left on device", str(path))
    assert ended(component, monkeypatch, "cloud", tmp_path, Broken(full)) == [1]
    said = (
        f"{path} cannot be read or written (No space left on device): free space on its disk or correct its "
        f"permissions; `sfedhp cloud {tmp_path}` then continues."
    )
    assert capsys.readouterr().out == f"error: {said}\n"
    events = json_lines(tmp_path / "run" / "log.jsonl")
    assert [(line["event"], line.get("reason")) for line in events] == [("failed", said), ("exchanged", None)]


@pytest.mark.parametrize(
    ("role", "gone", "remedy"),
    [
        ("client", "run", "start the role with `sfedhp client KIT`."),
        ("bridge", "run", "start the role with `sfedhp edge KIT`."),
        ("cloud", "run", "start the role with `sfedhp cloud KIT`."),
        ("cloud", "run/run.json", "`sfedhp cloud KIT`, or start a new run with `sfedhp cloud KIT --new`."),
    ],
)
def test_a_role_whose_files_were_removed_is_not_restarted(
    component, monkeypatch, tmp_path, capsys, role, gone, remedy
):
    def remove():
        shutil.rmtree(tmp_path / "run")
        if gone != "run":
            (tmp_path / "run").mkdir()

    broken = Broken(FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), remove)
    assert ended(component, monkeypatch, role, tmp_path, broken) == [2]
    out = capsys.readouterr().out
    assert out.startswith(f"error: {tmp_path / gone} was removed while the role was running: restore it from")
    assert out.endswith(remedy.replace("KIT", str(tmp_path)) + "\n")


def test_a_cloud_that_could_not_write_its_first_file_is_restarted(component, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CloudFolder, "run_id", full)
    codes: list[int] = []
    Federation(tmp_path, experiment(rounds=1))
    component.run_role("cloud", tmp_path / "cloud", Broken(None), None, codes.append)
    assert codes == [1]


def test_the_warning_that_a_certificate_expires_is_repeated(component, monkeypatch, tmp_path):
    monkeypatch.setattr(component, "expiry_warning", lambda kit: "It expires.")
    log = EventLog(tmp_path, "edge-0")
    stop = component.watch_expiry(tmp_path, log, interval=0.001)
    try:
        wait_for(lambda: len(json_lines(tmp_path / "log.jsonl")) >= 3)
    finally:
        stop.set()
    assert json_lines(tmp_path / "log.jsonl")[0]["event"] == "expires"

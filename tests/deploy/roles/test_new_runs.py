"""A federation that begins again, in this process: second runs, early starts, damaged records, full disks."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.deploy.event_log import LOG
from sfedhp.deploy.messaging.protocol import NO_RUN
from sfedhp.deploy.roles.cloud import CloudRole
from sfedhp.deploy.roles.cloud_folder import CloudFolder
from sfedhp.deploy.roles.state_files import save_state
from sfedhp.runs import tensor_files
from sfedhp.runs.models import save_model
from sfedhp.runs.records import History
from tests.support.deploy_memory import QUICK, Federation, experiment, same_models
from tests.support.file_bytes import file_bytes
from tests.support.json_lines import json_lines
from tests.support.patient_clock import CLOCK, wait_for

STEP = QUICK.silent_seconds / 2


def begin_anew(federation):
    """As `sfedhp cloud --new`."""
    number = len(list((federation.folder / "cloud").glob("run*")))
    (federation.folder / "cloud" / "run").rename(federation.folder / "cloud" / f"run-{number}")


def start_without(federation, *late):
    federation.start(*(name for name in federation.names if name not in late))


def pass_time(federation, steps=3):
    """Let more time pass than a silent member is waited for, and let every server act on it.

    Members that are there are heard again after each step, so that only those that are not count as silent.
    """
    servers = [name for name, role in federation.roles.items() if hasattr(role, "_members")]

    def heard(name, since):
        members = [each for each in federation.roles[name]._members.members if each.hello is not None]
        return not federation.threads[name].is_alive() or all(each.heard_at >= since for each in members)

    # The last step takes no time: a server that hears its members again has seen the time before it.
    for seconds in [*[STEP] * steps, 0.0]:
        now = CLOCK.skip(seconds)
        for name in servers:
            wait_for(partial(heard, name, now))


def wait_for_reply(federation, server, seat):
    """Wait until a server has a member's reply to the request that is open."""
    members = federation.roles[server]._members
    wait_for(lambda: (request := members._request) is not None and seat in request.replies)


def missing(federation):
    return [row["missing"] for row in federation.rows()]


def test_a_second_run_waits_for_late_clients_as_the_first_did(tmp_path):
    what = experiment(rounds=1)
    federation = Federation(tmp_path, what)
    federation.start()
    federation.finish()
    begin_anew(federation)
    start_without(federation, "client-0-1", "client-1-1")
    for edge in ("edge-0/edge", "edge-1/edge"):
        wait_for_reply(federation, edge, 0)
    pass_time(federation)
    federation.start("client-0-1", "client-1-1")
    federation.finish()
    assert missing(federation) == [{}]
    same_models(federation, sfedhp.run(what))


def test_an_edge_that_is_there_long_before_the_others_waits_for_them(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=1))
    early = [name for name in federation.names if name.startswith("edge")]
    federation.prepare(*federation.names)
    federation.start(*early)
    wait_for(lambda: all((federation.roles[name].log.folder / LOG).exists() for name in early))
    CLOCK.skip(1.5 * QUICK.start_seconds)
    start_without(federation, *early, "client-0-1")
    wait_for_reply(federation, "edge-0/edge", 0)
    pass_time(federation)
    federation.start("client-0-1")
    federation.finish()
    assert missing(federation) == [{}]


def test_a_cloud_started_again_before_its_first_round_still_waits_for_all(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=1))
    federation._role("cloud")  # it has made the run, and died
    late = ["edge-1/bridge", "edge-1/edge"]
    start_without(federation, *late)
    wait_for_reply(federation, "cloud", 0)
    pass_time(federation)
    federation.start(*late)
    federation.finish()
    assert missing(federation) == [{}]


def test_an_edge_restarted_within_a_run_does_not_wait_for_a_free_seat_again(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=1))
    federation.start()
    federation.finish()
    again = federation._role("edge-0/edge")
    again._enter(federation.roles["edge-0/edge"]._members.run)
    assert again._members.start_until == 0.0
    again._enter("0" * 16)
    assert again._members.start_until > CLOCK()


def test_an_edge_that_stays_up_keeps_nothing_of_the_run_before(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=1))
    federation.start()
    federation.finish()
    edge = federation.roles["edge-0/edge"]
    edge._members.traffic.add("down", 0, 100, 1, 7)
    assert edge._progress is not None
    assert edge._members.metadata()
    edge._enter("0" * 16)
    assert edge._progress is None
    assert not edge._members.metadata(), "who was there then may be on its way now"
    assert edge._members.take_traffic().entry("down").bytes.sum() == 0


def test_a_client_not_drawn_yet_is_judged_by_nothing_of_the_run_before(tmp_path):
    """Two clients are drawn in round 1, the two others in round 2: until then they have learned nothing."""
    what = experiment("pfedme", rounds=2, seed=3, sampled_clients=2)
    federation = Federation(tmp_path, what)
    federation.start()
    federation.finish()
    first = [row["pm_loss"] for row in federation.rows()]
    begin_anew(federation)
    federation.start()
    federation.finish()
    assert [row["pm_loss"] for row in federation.rows()] == pytest.approx(first)


@pytest.mark.parametrize("file", ["history.jsonl", "ledger.jsonl"])
def test_a_cloud_with_a_damaged_record_refuses_and_loses_nothing(file, tmp_path, monkeypatch):
    federation = Federation(tmp_path, experiment(rounds=3))
    federation.start()
    federation.finish()
    run = tmp_path / "cloud" / "run"
    lines = (run / file).read_text().splitlines()
    (run / file).write_text("\n".join([lines[0], lines[1][:20], lines[2]]) + "\n")
    monkeypatch.setattr(CloudRole, "_run_rounds", lambda *_: pytest.fail("it went on"))
    kept = file_bytes(run)
    with pytest.raises(InputError, match=f"{file} is damaged in line 2: .*: restore it from a copy"):
        federation._role("cloud").work()
    assert file_bytes(run) == kept


LEDGERS = {
    "moved away": ([], True),
    "whole": ([1, 2, 3], True),
    "a round further than the checkpoint": ([1, 2, 3, 4], True),
    "begun again when it was moved away": ([3], True),
    "begun again, and continued": ([4], True),
    "its end is lost": ([1, 2], False),
    "a round is lost": ([1, 3], False),
    "a round is there twice": ([1, 2, 2, 3], False),
    "unreadable from the start": (["?", 2, 3], False),
    "unreadable in between": ([1, "?", 3], False),
}


@pytest.mark.parametrize(("booked", "fine"), LEDGERS.values(), ids=LEDGERS)
def test_a_cloud_continues_with_a_ledger_without_gaps(booked, fine, tmp_path):
    role = Federation(tmp_path, experiment())._role("cloud")
    run = tmp_path / "cloud" / "run"
    (run / "history.jsonl").write_text("".join(f'{{"round": {n}, "seconds": 1.0}}\n' for n in (1, 2, 3)))
    if booked:
        (run / "ledger.jsonl").write_text("".join(f'{{"round": {n}}}\n' for n in booked))
    if fine:
        assert len(role._folder.history(3).rows) == 3
    else:
        named = (
            rf"is damaged in line {booked.index('?') + 1}: .*" if "?" in booked else "does not hold each.*"
        )
        with pytest.raises(
            InputError, match=rf"ledger.jsonl {named}: restore it from a copy, or move it away"
        ):
            role._folder.history(3)


def test_the_cloud_forces_its_records_before_each_checkpoint(tmp_path, monkeypatch):
    done = []
    fsync, save = History.fsync, CloudFolder.save

    def forced(self):
        done.append(f"rows {len(self.rows)}")
        fsync(self)

    def saved(self, rounds, served):
        done.append(f"checkpoint {rounds}")
        save(self, rounds, served)

    monkeypatch.setattr(History, "fsync", forced)
    monkeypatch.setattr(CloudFolder, "save", saved)
    federation = Federation(tmp_path, experiment("fedavg", rounds=2))
    federation.start()
    federation.finish()
    assert done == ["rows 1", "checkpoint 1", "rows 2", "checkpoint 2"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_that_cannot_be_written_is_an_error_of_the_system(durable, tmp_path):
    with pytest.raises(OSError, match="No such file"):
        save_state(tmp_path / "none" / "state", {"a": torch.zeros(1)}, {}, durable=durable)
    (tmp_path / "model").mkdir()
    with pytest.raises(OSError, match="directory"):
        save_model(tmp_path / "model", torch.nn.Linear(1, 1), 1)


def test_edges_and_clients_continue_in_memory_while_their_disks_are_full(tmp_path, monkeypatch):
    what = experiment(rounds=2)

    def full(tensors, path, *more):
        if "cloud" not in Path(path).relative_to(tmp_path).parts:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save_file(tensors, path, *more)

    federation = Federation(tmp_path, what)
    monkeypatch.setattr(tensor_files, "save_file", full)
    federation.start()
    federation.finish()
    rows, run = federation.rows(), sfedhp.run(what)
    assert missing(federation) == [{}, {}]
    assert rows[-1]["pm"] == pytest.approx(run.history[-1]["pm"])
    found = federation.models("global")
    assert run.global_model is not None
    assert all(found[name].allclose(value) for name, value in run.global_model.state_dict().items())
    for name in ("edge-0", "client-0-0"):
        reasons = [line["reason"] for line in federation.events(name, "trouble")]
        # The client's state after 4 edge rounds and its model after 2 rounds; the edge's likewise.
        assert len(reasons) == 6
        assert all("the disk cannot be written: No space left" in reason for reason in reasons), reasons
        assert not list((tmp_path / name / "run").rglob("*.safetensors"))


def test_a_deployment_counts_bytes_and_seconds_and_models_no_link(tmp_path):
    links = {"client_edge": {"preset": "wifi"}, "edge_cloud": {"preset": "wan"}}
    federation = Federation(tmp_path, experiment(rounds=1, links=links))
    federation.start()
    federation.finish()
    row = federation.rows()[0]
    assert row["bytes_client_edge"] > 0
    assert row["seconds"] > 0
    assert not [name for name in row if name.startswith("link_")]
    assert json.loads((tmp_path / "cloud" / "run" / "status.json").read_text())["run"] != NO_RUN


def test_a_full_disk_leaves_no_half_of_a_line_in_the_log(tmp_path):
    """In a process of its own, which may write files of 300 bytes alone."""
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from sfedhp.deploy.event_log import EventLog\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "log = EventLog(Path(sys.argv[1]), 'edge')\n"
        "log.write('first')\n"
        "log.write('second', reason=400 * 'x')\n"
        "log.write('third')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert [line["event"] for line in json_lines(tmp_path / "log.jsonl")] == ["first", "third"]

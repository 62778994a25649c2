"""Faults of a whole federation, in this process: wrong replies, lost roles, new ones, a disk that is full."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

import sfedhp
from sfedhp.core.errors import InputError, Note
from sfedhp.core.types import Clock
from sfedhp.deploy.messaging.protocol import Envelope, Kind, decode_message, encode_message
from sfedhp.deploy.messaging.spool import Spool
from sfedhp.deploy.roles.cloud import CloudRole
from sfedhp.runs.divergence import not_finite
from tests.support.deploy_memory import QUICK, Federation, experiment, same_models
from tests.support.file_bytes import file_bytes
from tests.support.patient_clock import CLOCK, wait_for

HASTY = replace(QUICK, silent_seconds=1.0, start_seconds=2.0)
AWAY = 3.0  # s after which members send again what a lost role had received


def spoiled(name, change):
    """An exchange in which the replies of one member are changed."""

    def deliver(box, to, data):
        if box.name == name and decode_message(data).kind is Kind.REPLY:
            return change(data)
        return [data]

    return deliver


def _other_round(data):
    envelope = decode_message(data)
    return [encode_message(replace(envelope, clock=envelope.clock._replace(cloud_round=77)))]


WRONG = {
    "garbage": lambda data: [b"\x00garbage\xff" * 9],
    "cut": lambda data: [data[: len(data) // 2]],
    "wrong config": lambda data: [encode_message(replace(decode_message(data), config="0" * 16))],
    "not a number": lambda data: [data[:-8] + b"\x00\x00\x00\x00\x00\x00\xf8\x7f"],
    "weightless": lambda data: [encode_message(replace(decode_message(data), weight=0.0))],
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_client_that_answers_wrongly_weighs_zero_in_every_round(change, tmp_path):
    federation = Federation(tmp_path, experiment(rounds=2), change=spoiled("client-0-1", change))
    federation.start()
    federation.finish()
    rows = federation.rows()
    assert [row["missing"] for row in rows] == [{"client-0-1": 2}] * 2
    assert sum(line["times"] for line in federation.events("edge-0", "refused")) == 4
    assert all(torch.isfinite(value).all() for value in federation.models("global").values())


def test_another_rounds_reply_is_refused_and_the_run_continues(tmp_path):
    federation = Federation(
        tmp_path,
        experiment(rounds=1),
        replace(HASTY, client_seconds=2.0),
        spoiled("client-0-1", _other_round),
    )
    federation.start()
    federation.finish()
    assert federation.rows()[0]["missing"] == {"client-0-1": 2}
    assert federation.events("edge-0", "refused")


def test_a_client_that_answers_twice_counts_once(tmp_path):
    what = experiment(rounds=2)
    federation = Federation(tmp_path, what, change=spoiled("client-0-1", lambda data: [data, data]))
    federation.start()
    federation.finish()
    same_models(federation, sfedhp.run(what))
    assert sum(line["times"] for line in federation.events("edge-0", "refused")) == 4


def test_a_client_that_answers_too_late_weighs_zero(tmp_path):
    limits = replace(QUICK, client_seconds=2.0, silent_seconds=30.0)

    def slow(box, to, data):
        """A reply comes after its time, when its edge has gone on without it."""
        envelope = decode_message(data)

        def requested():
            request = federation.roles["edge-1/edge"]._members._request
            return request is not None and (request.kind, request.clock) == (Kind.WORK, envelope.clock)

        if box.name == "client-1-0" and envelope.kind is Kind.REPLY:
            CLOCK.skip(limits.client_seconds)
            wait_for(lambda: not requested())
        return [data]

    federation = Federation(tmp_path, experiment(rounds=2), limits, slow)
    federation.start()
    federation.finish()
    assert [row["missing"].get("client-1-0") for row in federation.rows()] == [2, 2]
    assert federation.events("edge-1", "refused")


@pytest.mark.parametrize("name", ["client-0-1", "edge-0/edge", "edge-0/bridge", "cloud"])
def test_a_role_that_is_lost_and_started_again_changes_no_number(name, tmp_path):
    what = experiment(rounds=3, algorithm={"edge_rounds": 6, "start": "carried"})
    run = sfedhp.run(what)
    within, there_again = threading.Event(), threading.Event()

    def held(box, to, data):
        """In the middle of the second cloud round, the first edge waits for a client."""
        envelope = decode_message(data)
        middle = box.name == "client-0-0" and tuple(envelope.clock) == (1, 3) and envelope.kind is Kind.REPLY
        if middle and not within.is_set():
            within.set()
            wait_for(there_again.is_set)
        return [data]

    limits = replace(QUICK, silent_seconds=30.0, client_seconds=60.0)
    federation = Federation(tmp_path, what, limits, held)
    federation.start()
    wait_for(within.is_set)
    federation.lose(name)
    lost = federation.roles[name]
    CLOCK.skip(AWAY)
    federation.start(name)
    there_again.set()
    federation.finish(90)
    assert federation.roles[name] is not lost
    rows = federation.rows()
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert all(row["missing"] == {} for row in rows)
    same_models(federation, run)
    if name == "edge-0/edge":
        assert federation.events("edge-0", "resumed")[0]["edge_round"] == 3
        asked = federation.exchange.messages["client-0-0", "WORK"]
        assert 3 * 6 <= asked <= 3 * 6 + 2, "no edge round is done twice"


def test_a_client_resumes_its_personal_state_from_disk(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=2))
    federation.start()
    federation.finish()
    again = federation._role("client-0-0")
    before = federation.roles["client-0-0"]
    assert torch.equal(again._client.statistics, before._client.statistics)
    assert again._run == before._run
    assert federation.events("client-0-0", "resumed")


def test_a_new_run_starts_the_clients_anew(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=2))
    federation.start()
    federation.finish()
    first = federation.models("client-0-0")
    (tmp_path / "cloud" / "run").rename(tmp_path / "cloud" / "run-1")
    federation.start()
    federation.finish()
    again = federation.models("client-0-0")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_finished_run_only_says_farewell(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=1))
    federation.start()
    federation.finish()
    federation.start()
    federation.finish()
    assert [row["round"] for row in federation.rows()] == [1]


def test_a_cloud_of_another_config_is_refused(tmp_path):
    federation = Federation(tmp_path, experiment(rounds=1))
    federation._role("cloud")
    other = Federation(tmp_path, experiment(rounds=1, batch_size=7))
    with pytest.raises(InputError, match="--new"):
        other._role("cloud")


def _restored(cloud):
    """The rounds that a restarted cloud takes for done."""
    rounds, _ = cloud._folder.restore(cloud._cloud.served)
    return rounds


def test_a_cloud_without_a_readable_checkpoint_refuses_and_loses_nothing(tmp_path, monkeypatch):
    federation = Federation(tmp_path, experiment(rounds=3))
    federation.start()
    federation.finish()
    run = tmp_path / "cloud" / "run"
    before, newest = sorted((run / "checkpoint").iterdir())
    newest.write_bytes(newest.read_bytes()[:50])
    with pytest.warns(Note, match=f"{newest} is damaged"):
        assert _restored(federation._role("cloud")) == 2, "the one before is taken"
    before.write_bytes(b"")
    monkeypatch.setattr(CloudRole, "_run_rounds", lambda *_: pytest.fail("it began again"))
    kept = file_bytes(run)
    with pytest.raises(InputError) as error:
        federation._role("cloud").work()
    assert str(error.value).startswith(
        f"No checkpoint in {run / 'checkpoint'} can be read: restore one from a copy, or start a new run "
        f"with `sfedhp cloud {tmp_path / 'cloud'} --new`, which keeps this one beside it. {newest} "
        f"is damaged: "
    )
    assert file_bytes(run) == kept
    assert [row["round"] for row in federation.rows()] == [1, 2, 3]


def test_a_silent_edge_is_missing_and_gives_up_its_round_when_the_cloud_continues(tmp_path):
    """The edge's clients join after the cloud's round ended; no client replies, so none is averaged."""
    limits = replace(HASTY, edge_seconds=2.0, start_seconds=1.0)
    federation = Federation(tmp_path, experiment(rounds=8), limits)
    late = ["client-1-0", "client-1-1"]
    federation.start(*(name for name in federation.names if name not in late))
    wait_for(lambda: len(federation.rows()) >= 2)
    federation.start(*late)
    federation.finish(90)
    rows = federation.rows()
    assert rows[0]["missing"]["edge-1"] == 1
    assert federation.events("edge-1", "superseded")


def test_a_new_client_takes_a_free_seat(tmp_path):
    came = threading.Event()

    def held(box, to, data):
        """The run does not end before the new client is there."""
        if box.name == "client-0-1":
            came.set()
        envelope = decode_message(data)
        if (box.federation, box.name) == ("cloud", "edge-0") and envelope.kind is Kind.REPLY:
            wait_for(lambda: came.is_set() or envelope.clock.cloud_round < 4)
        return [data]

    federation = Federation(tmp_path, experiment(rounds=9, algorithm={"edge_rounds": 6}), HASTY, held)
    federation.start(*(name for name in federation.names if name != "client-0-1"))
    wait_for(lambda: len(federation.rows()) >= 1)
    federation.start("client-0-1")
    federation.finish(90)
    rows = federation.rows()
    assert rows[0]["missing"] == {"client-0-1": 6}
    assert rows[-1]["missing"] == {}


def test_a_full_disk_is_waited_for(tmp_path, monkeypatch):
    """At the bridge the request is asked for again, at the edge the answer is kept until there is room."""
    what = experiment(rounds=2)
    full = {"put": 1, "finish": 1}
    for name in full:
        kept = getattr(Spool, name)

        def write(self, *arguments, name=name, kept=kept):
            if full[name]:
                full[name] -= 1
                raise OSError(28, "No space left on device")
            return kept(self, *arguments)

        monkeypatch.setattr(Spool, name, write)
    federation = Federation(tmp_path, what)
    federation.start()
    federation.finish()
    same_models(federation, sfedhp.run(what))
    assert any(
        "No space" in line["reason"]
        for edge in (0, 1)
        for line in federation.events(f"edge-{edge}", "trouble")
    )


def test_a_run_that_diverges_ends_with_a_word(tmp_path):
    model = {"name": "mlr", "weight_decay": 1.0}
    what = experiment("fedavg", rounds=30, dtype="float32", model=model, algorithm={"local_rate": 1e36})
    federation = Federation(tmp_path, what, HASTY)
    federation.start()
    federation.finish()
    # Clients whose models are not finite have nothing to send: they say so, and the run ends.
    reasons = [line["reason"] for line in federation.events("cloud", "refused")]
    assert any("diverged" in reason for reason in reasons)
    assert "no member can answer" in federation.events("cloud", "trouble")[0]["reason"]
    assert all(torch.isfinite(value).all() for value in federation.models("global").values())


def test_edges_whose_clients_all_diverge_end_the_run(tmp_path):
    what = experiment(rounds=30, dtype="float32", algorithm={"personal_rate": 1e36})
    federation = Federation(tmp_path, what, HASTY)
    federation.start()
    federation.finish()
    assert "no member can answer" in federation.events("cloud", "trouble")[0]["reason"]


def test_an_edge_scores_after_a_restart_with_what_it_held(tmp_path):
    """Killed between its answer and the request how good its model is, an edge knows φ_i from its disk."""
    federation = Federation(tmp_path, experiment(rounds=1))
    federation.start()
    federation.finish()
    role = federation._role("edge-0/edge")
    served = role._last_served(_about(federation.roles["edge-0/edge"]._members.run))
    held = federation.roles["edge-0/edge"]._progress.served
    assert torch.equal(served.state.personal, held.state.personal)
    assert federation._role("edge-1/edge")._last_served(_about("0" * 16)) is None


def _about(run):
    return Envelope(Kind.SCORE, run, "0" * 16, 0)


def test_a_method_whose_clients_get_another_model_than_the_global_one(tmp_path):
    """With centers of their own, clients receive φ_ij; the global model is sent beside it."""
    what = experiment(rounds=2, algorithm={"anchor": "client"})
    federation = Federation(tmp_path, what)
    federation.start()
    federation.finish()
    run = sfedhp.run(what)
    same_models(federation, run)
    assert federation.rows()[-1]["gm"] == pytest.approx(run.history[-1]["gm"])


def test_a_training_loss_that_explodes_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sfedhp.deploy.roles.cloud.explosion", lambda rows: "diverged in round 1: it exploded"
    )
    monkeypatch.setattr("sfedhp.deploy.roles.loss_watch.EXPLOSION", 0.0)
    federation = Federation(tmp_path, experiment(rounds=5))
    federation.start()
    federation.finish()
    assert len(federation.rows()) == 1
    assert federation.events("cloud", "trouble")[0]["reason"] == "diverged in round 1: it exploded"


def test_a_cloud_whose_own_model_is_not_finite_keeps_the_last_good_one(tmp_path, monkeypatch):
    what = experiment("fedavg", rounds=4)
    infinite = {"the model": torch.tensor([1.0, torch.inf])}
    monkeypatch.setattr("sfedhp.deploy.roles.cloud.not_finite", lambda trees: not_finite(infinite))
    federation = Federation(tmp_path, what)
    federation.start()
    federation.finish()
    assert federation.rows() == []
    assert "not finite" in federation.events("cloud", "trouble")[0]["reason"]


def test_a_client_that_cannot_compute_says_so_and_stays(tmp_path, monkeypatch):
    """An error of one step is a silence of one round, not the end of the client."""
    from sfedhp.engine.roles import Client

    kept = Client.reply
    failed: list[Clock] = []

    def answer(self, received, clock):
        if clock.cloud_round == 1 and clock.edge_round == 0 and len(failed) < 1:
            failed.append(clock)
            raise RuntimeError("out of memory")
        return kept(self, received, clock)

    monkeypatch.setattr(Client, "reply", answer)
    federation = Federation(tmp_path, experiment(rounds=3))
    federation.start()
    federation.finish()
    missing = [sum(row["missing"].values()) for row in federation.rows()]
    assert missing == [0, 1, 0]
    refused = [line for edge in ("edge-0", "edge-1") for line in federation.events(edge, "refused")]
    assert [line["reason"] for line in refused] == ["out of memory"]


def test_a_slow_edge_finishes_and_counts_later(tmp_path):
    """It would drop its round for a newer one, and never count, if late uploads were lost."""

    replied = [0]  # how often the quick edge has replied to the cloud

    def change(box, to, data):
        """Each reply of a client of the slow edge takes until the quick edge has replied twice more."""
        reply = decode_message(data).kind is Kind.REPLY
        if reply and (box.federation, box.name) == ("cloud", "edge-0"):
            replied[0] += 1
        if reply and box.federation == "edge-1" and to == "server":
            before = replied[0]
            wait_for(lambda: replied[0] >= min(before + 2, 25))
        return [data]

    what = experiment("hierfavg", rounds=25, late={"quorum": 1, "decay": 0.5}, evaluation={"every": 25})
    federation = Federation(tmp_path, what, change=change)
    federation.start()
    federation.finish()
    rows = federation.rows()
    assert len(rows) == 25
    late = federation.events("cloud", "late")
    assert {line["member"] for line in late} == {"edge-1"}
    counted = [row["round"] for row in rows if "edge-1" not in row["missing"]]
    assert 0 < len(counted) < 25
    assert not federation.events("edge-1", "superseded")
    assert all("edge-0" not in row["missing"] for row in rows[1:])

"""Deployed servers that learn sums alone: numbers and bytes as simulated, also with lost or lying members."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sfedhp
from sfedhp.algorithms import FEDERATED
from sfedhp.core.errors import InputError
from sfedhp.deploy.federation_file import FederationFile
from sfedhp.deploy.messaging.protocol import Kind, decode_message, encode_message
from sfedhp.deploy.topology import lay_out
from sfedhp.runs.prepare import prepare
from sfedhp.wire.direction import Direction
from tests.support.deploy_memory import QUICK, Federation, experiment, finished, same_models
from tests.support.patient_clock import CLOCK, wait_for

SLOW = pytest.mark.slow
METHODS = [name for name, kind in FEDERATED.items() if kind().needs_only_sums]
QUICKLY = ("sfedhp", "scaffold")
HASTY = replace(QUICK, client_seconds=5.0)
DOWN = (Kind.WORK, Kind.OFFER, Kind.CONFIRM, Kind.UNMASK)
UP = (Kind.REPLY, Kind.OFFERS, Kind.CONFIRMED, Kind.SHARES)


def one_server(name="fedavg", **more):
    """One server with five clients."""
    return experiment(name, **{"secure": True, "edges": 1, "clients_per_edge": 5, **more})


def spoiled(changes):
    """An exchange in which messages of some members and kinds are changed; None: they are lost."""

    def deliver(box, to, data):
        if to != "server":
            return [data]
        envelope = decode_message(data)
        change = changes.get((box.name, envelope.kind, int(envelope.clock.cloud_round)), lambda it: it)
        changed = change(envelope)
        return [] if changed is None else [encode_message(changed)]

    return deliver


def lost(envelope):
    return None


@pytest.mark.parametrize(
    "name", [name if name in QUICKLY else pytest.param(name, marks=SLOW) for name in METHODS]
)
def test_every_method_gives_the_simulators_models(name, tmp_path):
    what = experiment(name, secure=True, rounds=3 if name == "sfedhp" else 2)
    federation = finished(tmp_path, what)
    same_models(federation, sfedhp.run(what))
    assert all(row["missing"] == {} for row in federation.rows())


def test_a_sample_of_clients_is_a_sum_of_its_own(tmp_path):
    what = one_server(sampled_clients=3, rounds=3)
    federation = finished(tmp_path, what)
    same_models(federation, sfedhp.run(what))
    assert all(row["missing"] == {} for row in federation.rows())


def test_running_statistics_are_summed_too(tmp_path):
    what = one_server(model={"name": "tests.support.small_modules:normalized"}, clients_per_edge=3, rounds=2)
    same_models(finished(tmp_path, what), sfedhp.run(what))


def test_a_member_that_is_lost_before_between_or_after_the_stages_costs_no_round(tmp_path):
    # Two may still be late in the last round, where a third is lost: four of seven are enough for a sum.
    what = one_server(rounds=3, clients_per_edge=7)
    changes = {
        ("client-0-0", Kind.OFFERS, 0): lost,
        ("client-0-1", Kind.REPLY, 1): lost,
        ("client-0-2", Kind.SHARES, 2): lost,
        ("client-0-2", Kind.CONFIRMED, 2): lost,
    }
    federation = finished(tmp_path, what, HASTY, spoiled(changes))
    missing = [set(row["missing"]) for row in federation.rows()]
    # Who was late is waited for again as soon as its heartbeat shows that it is idle.
    assert missing[0] == {"client-0-0"}
    assert {"client-0-1"} <= missing[1] <= {"client-0-0", "client-0-1"}
    assert missing[2] <= {"client-0-0", "client-0-1"}
    simulator = prepare(what).simulator
    simulator.lost = lambda clock, ids: torch.tensor(
        [f"client-0-{client}" in missing[int(clock.cloud_round)] for client in ids.tolist()]
    )
    *_, last = simulator.run(3)
    expected = simulator.task.network.build(last.served.state, last.served.statistics).state_dict()
    # A member without an offer is no part of the sum's shares, so that words are rounded otherwise.
    found = federation.models("global")
    assert all(torch.allclose(found[name], value, rtol=0, atol=2e-6) for name, value in expected.items())
    assert not federation.events("cloud", "no sum")


def test_a_round_with_too_few_replies_keeps_the_model(tmp_path):
    what = one_server(rounds=2)
    changes = {(f"client-0-{seat}", Kind.SHARES, 0): lost for seat in range(3)}
    federation = finished(tmp_path, what, HASTY, spoiled(changes))
    (line,) = federation.events("cloud", "no sum")
    assert line["reason"] == "too few clients sent their shares"
    rows = federation.rows()
    assert len(rows[0]["missing"]) == 5
    assert set(rows[1]["missing"]) < {"client-0-0", "client-0-1", "client-0-2"}


def test_the_bytes_of_a_round_are_the_simulators(tmp_path):
    """But for the envelopes: a header, metadata and lengths of parts, as around every message."""
    what = one_server(rounds=2)
    history = sfedhp.run(what).history
    parts = {"cloud_client": 0, "client_cloud": 0}

    def counted(box, to, data):
        envelope = decode_message(data)
        if envelope.kind in (*DOWN[1:], *UP):
            cards = envelope.parts[1:] if envelope.kind is Kind.OFFER else ()
            size = sum(map(len, envelope.parts)) - sum(map(len, cards))
            parts["client_cloud" if to == "server" else "cloud_client"] += size
        if envelope.kind is Kind.WORK:
            parts["cloud_client"] += len(envelope.parts[1])
        return [data]

    federation = finished(tmp_path, what, change=counted)
    models = 2 * 5 * 7850 * 8  # the simulation counts dense messages, the codec packs them
    assert sum(row[f"bytes_{Direction.CLOUD_CLIENT}"] for row in history) == parts["cloud_client"] + models
    assert sum(row[f"bytes_{Direction.CLIENT_CLOUD}"] for row in history) == parts["client_cloud"]
    rows, counts = federation.rows(), federation.exchange
    for direction, kinds, ways in (
        (Direction.CLOUD_CLIENT, DOWN, {"sender": "server"}),
        (Direction.CLIENT_CLOUD, UP, {"to": "server"}),
    ):
        ledger = sum(row[f"bytes_{direction}"] for row in rows)
        assert ledger == counts.bytes_of(*kinds, federation="cloud", **ways)
    keys = rows[0][f"bytes_key_{Direction.CLIENT_CLOUD}"]
    assert keys == counts.bytes_of(Kind.KEYS, federation="cloud") > 0
    assert rows[1].get(f"bytes_key_{Direction.CLIENT_CLOUD}", 0) == 0


@pytest.mark.parametrize("role", ["client-0-1", "cloud"])
def test_a_role_that_is_started_again_draws_new_keys(role, tmp_path):
    what = one_server(rounds=4)
    held: list[int] = []
    there_again: list[int] = []

    def hold(box, to, data):
        envelope = decode_message(data)
        if (box.name, envelope.kind, envelope.clock.cloud_round) == (
            "client-0-0",
            Kind.REPLY,
            1,
        ) and not held:
            held.append(1)
            wait_for(lambda: there_again)
        return [data]

    limits = replace(QUICK, silent_seconds=30.0, client_seconds=60.0)
    federation = Federation(tmp_path, what, limits, hold)
    federation.start()
    wait_for(lambda: held)
    federation.lose(role)
    CLOCK.skip(3.0)  # after which members send again what the lost role had received
    federation.start(role)
    there_again.append(1)
    federation.finish(120.0, *([role] if role == "client" else []))
    rows = federation.rows()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["missing"] == {}


def garbage(envelope):
    part = envelope.parts[0]
    return replace(envelope, parts=(part[:72] + bytes(len(part) - 72),))


LIES = {
    "shares that nobody can open": (Kind.OFFERS, garbage),
    "an offer that is cut": (Kind.OFFERS, lambda it: replace(it, parts=(it.parts[0][:-1],))),
    "no offer": (Kind.OFFERS, lambda it: replace(it, parts=())),
    "words that are cut": (Kind.REPLY, lambda it: replace(it, parts=(it.parts[0][:-9],))),
    "words that are damaged": (Kind.REPLY, lambda it: replace(it, parts=(it.parts[0][:-9] + bytes(9),))),
    "a weight of its own": (Kind.REPLY, lambda it: replace(it, weight=it.weight + 1)),
    "a plain model": (Kind.REPLY, lambda it: replace(it, parts=(bytes(60000), bytes(60)))),
    "wrong shares": (Kind.SHARES, lambda it: replace(it, parts=(it.parts[0][:8] + bytes(33 * 5),))),
    "wrong confirmations": (Kind.CONFIRMED, lambda it: replace(it, parts=(it.parts[0][:8] + bytes(16 * 4),))),
    "confirmations that are cut": (Kind.CONFIRMED, lambda it: replace(it, parts=(it.parts[0][:-1],))),
    "shares that are cut": (Kind.SHARES, lambda it: replace(it, parts=(it.parts[0][:-1],))),
    "accusations": (
        Kind.OFFERS,
        lambda it: replace(it, metadata={"trouble": "no", "accused": [0]}, parts=()),
    ),
    "odd accusations": (Kind.OFFERS, lambda it: replace(it, metadata={"trouble": "no", "accused": "all"})),
    "a key of another": (Kind.KEYS, lambda it: replace(it, parts=(it.parts[0][:-32] + bytes(32),))),
}


HARMLESS = [name for name, (kind, _) in LIES.items() if kind in (Kind.CONFIRMED, Kind.SHARES)]


@pytest.mark.parametrize(
    "lie", [name if name in list(LIES)[:1] else pytest.param(name, marks=SLOW) for name in LIES]
)
def test_a_member_that_lies_costs_itself_the_round_and_no_one_else(lie, tmp_path):
    kind, change = LIES[lie]
    what = one_server(rounds=2)
    changes = {("client-0-4", kind, number): change for number in range(2)}
    federation = finished(tmp_path, what, HASTY, spoiled(changes))
    rows = federation.rows()
    assert len(rows) == 2
    for row in rows:
        others = {"client-0-0"} if lie == "accusations" else set()
        assert row["missing"].keys() <= {"client-0-4"} | others
        assert (row["missing"] == {}) == (lie in HARMLESS)
    assert all(torch.isfinite(value).all() for value in federation.models("global").values())


def test_a_threshold_that_no_server_can_reach_is_refused():
    file = FederationFile(limits=replace(QUICK, secure_threshold=6))
    with pytest.raises(InputError, match="secure_threshold = 6 is more than the 5 clients"):
        lay_out(file, one_server())
    with pytest.raises(InputError, match="secure_threshold = 2 is not a majority of the 5 clients"):
        lay_out(replace(file, limits=replace(QUICK, secure_threshold=2)), one_server())
    for threshold in (0, 3, 5):
        made = lay_out(replace(file, limits=replace(QUICK, secure_threshold=threshold)), one_server())
        assert "The cloud learns sums" in made.notes[-1]
    nowhere = FederationFile(inputs=(4,), classes=3)
    assert "The cloud learns sums" in lay_out(nowhere, one_server(data={})).notes[0]
    with pytest.raises(InputError, match="no effect without secure = true"):
        lay_out(replace(file, limits=replace(QUICK, secure_threshold=3)), one_server(secure=False))

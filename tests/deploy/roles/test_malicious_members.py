"""A member with a certificate that sends anything: the run of the others continues and names it."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace

import pytest

from sfedhp.deploy.event_log import read_status
from sfedhp.deploy.federation_file import Limits
from sfedhp.deploy.messaging.payload import pack
from sfedhp.deploy.messaging.protocol import Kind, decode_message, encode_message
from sfedhp.wire import decode
from sfedhp.wire.link import WireOptions
from tests.support.deploy_memory import QUICK, Federation, close, experiment

WHO = "client-0-1"
LIMITS = replace(QUICK, start_seconds=1.5, silent_seconds=1.0, max_rows=10_000)


def attacking(attack):
    """The exchange's `change`: every message of the malicious member goes through the attack."""

    def change(box, to, data):
        return attack(decode_message(data)) if box.name == WHO else [data]

    return change


def ran(tmp_path, method, attack, **more):
    federation = Federation(tmp_path, experiment(method, **more), LIMITS, attacking(attack))
    federation.start()
    federation.finish()
    rows = federation.rows()
    assert [row["round"] for row in rows] == [1, 2, 3], federation.events("cloud", "trouble")
    status = read_status(tmp_path / "cloud" / "run")
    assert status is not None
    assert status["trouble"] is None
    return federation, rows


def reasons(federation, server):
    return [line["reason"] for line in federation.events(server, "refused") if line["member"] == WHO]


def only(kind, change):
    return lambda envelope: [encode_message(change(envelope) if envelope.kind is kind else envelope)]


def scaled(factor, part=slice(None)):
    def change(envelope):
        upload = decode(envelope.parts[0])
        upload[part] = upload[part] * factor + 1e30
        return replace(envelope, parts=pack(upload, len(upload), WireOptions())[0])

    return change


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The models of a run in which the malicious member never takes part, by method."""
    found = {}

    def run(method):
        if method not in found:
            folder = tmp_path_factory.mktemp(method)
            federation, _ = ran(folder, method, lambda envelope: [])
            found[method] = federation.models("global")
        return found[method]

    return run


@pytest.mark.parametrize("method", ["fedavg", "hierfavg", "sfedhp"])
@pytest.mark.parametrize("weight", [1e30, -3.0])
def test_a_false_weight_counts_for_nothing(tmp_path, without, method, weight):
    federation, rows = ran(
        tmp_path, method, only(Kind.REPLY, lambda envelope: replace(envelope, weight=weight))
    )
    server = "cloud" if method == "fedavg" else "edge-0"
    assert "its weight is" in reasons(federation, server)[0]
    assert rows[-1]["missing"][WHO]
    for name, value in without(method).items():
        assert close(federation.models("global")[name], value), name


@pytest.mark.parametrize(
    ("method", "part"),
    [(name, slice(None)) for name in ("fedavg", "hierfavg")]
    + [(name, slice(-5, None)) for name in ("scaffold", "mtgc")],
)
def test_a_huge_finite_model_counts_for_nothing(tmp_path, without, method, part):
    """Messages of the last two are longer than a model, and their end is huge."""
    federation, _ = ran(tmp_path, method, only(Kind.REPLY, scaled(1e30, part)))
    server = "cloud" if method in ("fedavg", "scaffold") else "edge-0"
    assert "limits.max_change" in reasons(federation, server)[0]
    for name, value in without(method).items():
        assert close(federation.models("global")[name], value), name


@pytest.mark.parametrize("loss", [math.nan, 1e300, -1e300])
def test_a_false_loss_ends_nothing(tmp_path, loss):
    def change(envelope):
        metadata = dict(envelope.metadata)
        correct, rows, _ = metadata["train"]["loss"]
        return replace(envelope, metadata={**metadata, "train": {"loss": [correct, rows, loss]}})

    ran(tmp_path, "fedavg", only(Kind.SCORES, change))


def test_false_counts_are_refused(tmp_path):
    def change(envelope):
        return replace(envelope, metadata={**envelope.metadata, "test": {"gm": [0, 9000, 0.0]}})

    federation, rows = ran(tmp_path, "fedavg", only(Kind.SCORES, change))
    assert "but it reported" in reasons(federation, "cloud")[0]
    assert rows[-1]["gm"] > 10


def test_one_sampled_member_in_trouble_ends_nothing(tmp_path):
    """It was drawn alone in some round, and says that it cannot answer."""

    def change(envelope):
        return replace(envelope, weight=0.0, parts=(), metadata={"trouble": "\x1b[2J it diverged"})

    federation = Federation(
        tmp_path,
        experiment("fedavg", rounds=8, sampled_clients=1),
        LIMITS,
        attacking(only(Kind.REPLY, change)),
    )
    federation.start()
    federation.finish()
    assert len(federation.rows()) == 8
    assert federation.events("cloud", "passed")
    assert reasons(federation, "cloud")[0] == "\\x1b[2J it diverged"


def hellos(metadata):
    """Each heartbeat says this too; it is encoded once, because some of it is long."""
    encoded: list[bytes] = []

    def attack(envelope):
        if envelope.kind is not Kind.HELLO:
            return [encode_message(envelope)]
        if not encoded:
            encoded.append(encode_message(replace(envelope, metadata={**envelope.metadata, **metadata})))
        return encoded

    return attack


@pytest.mark.parametrize(
    "metadata",
    [
        {"members": {"x" * 1000: True}},
        {"members": {f"client-{number}": True for number in range(5_000)}},
        {"members": {"\x1b[2J": True}},
        {"seen": ["\x1b[31m" * 5, 1, 1, 1]},
        {"junk": "x" * 10_000_000},
        {"rows": [10**9, 0, 0]},
    ],
    ids=["a long name", "many names", "an escape", "an escape in a run", "ten megabytes", "rows"],
)
def test_a_hello_that_says_too_much_is_refused_and_kept_nowhere(tmp_path, metadata):
    federation, rows = ran(tmp_path, "hierfavg", hellos(metadata))
    assert reasons(federation, "edge-0")
    assert rows[-1]["missing"][WHO]
    for name in ("cloud", "edge-0"):
        assert (tmp_path / name / "run" / "status.json").stat().st_size < 20_000
        assert (tmp_path / name / "run" / "log.jsonl").stat().st_size < 20_000
        assert "\x1b" not in (tmp_path / name / "run" / "status.json").read_text()


def test_a_flood_of_wrong_replies_is_few_lines(tmp_path):
    def attack(envelope):
        wrong = [replace(envelope, kind=Kind.REPLY, member=seat) for seat in range(40)]
        return [encode_message(each) for each in [envelope, *wrong, *wrong]]

    began = time.monotonic()
    federation, _ = ran(tmp_path, "hierfavg", attack)
    seconds = time.monotonic() - began
    refused = federation.events("edge-0", "refused")
    kinds = Counter((line["member"], line["reason"]) for line in refused)
    assert max(Counter(member for member, _ in kinds).values()) <= 17, "sixteen reasons, and the others"
    # One line at once, one every ten seconds, and one when the site ends.
    assert max(kinds.values()) <= 2 + seconds / 10
    assert sum(line["times"] for line in refused) > 3 * len(refused)


def test_an_edge_cannot_count_what_others_clients_missed(tmp_path):
    def change(envelope):
        traffic = {**envelope.metadata["books"], "missing": {"client-1-0": 2**50}}
        return replace(envelope, metadata={**envelope.metadata, "books": traffic})

    def attack(box, to, data):
        envelope = decode_message(data)
        wrong = box.name == "edge-0" and envelope.kind is Kind.REPLY
        return [encode_message(change(envelope))] if wrong else [data]

    federation = Federation(tmp_path, experiment("hierfavg"), LIMITS, attack)
    federation.start()
    federation.finish()
    assert all("client-1-0" not in row["missing"] for row in federation.rows())
    assert "do not fit" in federation.events("cloud", "refused")[0]["reason"]


def test_limits_of_old_federation_files_are_generous():
    assert Limits().max_rows == 10_000_000
    assert Limits().max_change == 10_000.0

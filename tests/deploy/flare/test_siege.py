"""Two minutes with a malicious member, and kills; `python -m tools.malicious_member` runs for longer."""

from __future__ import annotations

import shutil
import threading

import pytest

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

import grpc  # type: ignore[import-untyped]

from sfedhp.deploy.renewal import renew, revoke
from tests.support.malicious import repair
from tests.support.raw_connection import channel_to, connected
from tests.support.siege import MALICIOUS, besiege

SECONDS = 120.0


def test_rounds_continue_and_a_revoked_member_is_refused_until_it_is_renewed(tmp_path):
    seen = besiege(tmp_path, SECONDS, 15.0, 0, revoked_and_renewed, pause=1.0)
    assert seen["wrong"] == []
    assert seen["kills"] >= 3
    assert "a message for another site" in seen["refused"]


def revoked_and_renewed(fleet):
    revoke(fleet.kits, MALICIOUS)
    for edge in ("edge-0", "edge-1"):
        (fleet.kits / edge / "revoked.json").unlink()  # on another machine: the cloud tells it
    starts = {name: process.starts for name, process in fleet.processes.items() if name != MALICIOUS}
    fleet.until(lambda: refusals(fleet))
    told, refused = fleet.events("edge-1", "revoked")[0]["time"], refusals(fleet)[0]["time"]
    between = [each for each in fleet.events("cloud", "round") if told < each["time"] < refused]
    assert len(between) <= 1, "within a round"
    rounds = len(fleet.rows())
    fleet.until(lambda: len(fleet.rows()) > rounds + 2)
    assert MALICIOUS in fleet.rows()[-1]["missing"]
    stolen = fleet.kits / "stolen"
    shutil.copytree(fleet.kits / MALICIOUS / "startup", stolen)
    renew(fleet.kits, MALICIOUS, 10)
    repair(fleet.kits / MALICIOUS)
    fleet.send(MALICIOUS)
    fleet.until(lambda: MALICIOUS not in fleet.rows()[-1]["missing"])
    # FLARE closes an older connection of a member for a newer one.
    port = fleet.layout.addresses[1].port
    with channel_to(port, stolen) as thief, pytest.raises(grpc.RpcError, match="certificate is revoked"):
        connected(thief, MALICIOUS, threading.Event())
    rounds = len(fleet.rows())
    fleet.until(lambda: len(fleet.rows()) > rounds + 2)
    assert MALICIOUS not in fleet.rows()[-1]["missing"]
    assert {name: fleet.processes[name].starts for name in starts} == starts, "no other was restarted"


def refusals(fleet):
    return [line for line in fleet.events("edge-1", "refused") if "revoked certificate" in line["reason"]]

"""Figures for Prometheus from what a role writes: states, refusals, certificates, and who may ask."""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
from datetime import UTC, datetime, timedelta

import pytest

from sfedhp.core.errors import InputError
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.federation_file import FederationFile, Monitor, read_federation
from sfedhp.deploy.monitor import (
    HELP,
    certificate_days,
    exposition,
    is_up,
    kit_samples,
    refusals,
    start_monitor,
    state_of,
)
from sfedhp.deploy.site import read_site
from sfedhp.deploy.topology import lay_out
from tests.support.deploy_memory import experiment
from tests.support.json_lines import json_lines
from tests.support.paths import ROOT


def status(**more):
    return {"name": "edge-0", "time": 1000.0, "members": {"a": True}, **more}


@pytest.mark.parametrize(
    ("state", "silent", "age", "shown"),
    [
        ("working", 0.4, 0.3, "working"),
        ("working", 2.0, 1.5, "silent"),
        ("late", 1.0, 0.0, "late"),
        ("refused", 0.0, 0.0, "refused"),
        ("absent", 60.0, 0.0, "absent"),
        ("idle", 0.0, 30.0, "silent"),
    ],
)
def test_a_member_is_silent_after_two_heartbeats_that_did_not_come(state, silent, age, shown):
    found = status(states={"a": {"state": state, "silent": silent}})
    assert state_of(found, "a", 1000 + age) == shown


def test_a_status_of_an_earlier_version_says_who_is_up():
    assert state_of(status(), "a") == "up"
    assert state_of(status(members={"a": {"up": False}}), "a") == "absent"
    assert state_of(status(finished=True), "a") == "ended"
    assert [is_up(state) for state in ("up", "late", "refused", "silent", "absent")] == [True] * 3 + [
        False
    ] * 2


def samples_of(kit):
    return {(sample.name, *sample.labels.values()): sample.value for sample in kit_samples(kit, {})}


def test_the_figures_of_a_role_are_those_of_its_status_and_log(tmp_path):
    log = EventLog(tmp_path / "run", "cloud")
    row = {"round": 3, "pm": 81.5, "gm": 60.0, "seconds": 1.5, "missing": {"edge-1": 2}}
    states = {
        name: {"state": state, "silent": 0.1} for name, state in [("edge-0", "idle"), ("edge-1", "absent")]
    }
    members = {"edge-0": {"up": True}, "edge-1": {"up": False}}
    log.write_status(now=True, round=3, rounds=9, row=row, members=members, states=states)
    log.write("refused", member="edge-1", reason="x", times=4)
    log.write("refused", member=None, reason="plain text instead of TLS", times=2)
    log.write("came", member="refused")
    found = samples_of(tmp_path)
    assert found.pop(("sfedhp_status_age_seconds",)) < 3600
    assert found == {
        ("sfedhp_round",): 3,
        ("sfedhp_rounds",): 9,
        ("sfedhp_finished",): 0,
        ("sfedhp_accuracy_percent", "pm"): 81.5,
        ("sfedhp_accuracy_percent", "gm"): 60.0,
        ("sfedhp_metric", "pm", "accuracy"): 81.5,
        ("sfedhp_metric", "gm", "accuracy"): 60.0,
        ("sfedhp_round_seconds",): 1.5,
        ("sfedhp_member_up", "edge-0"): 1,
        ("sfedhp_member_up", "edge-1"): 0,
        ("sfedhp_member_missing", "edge-1"): 2,
        ("sfedhp_refusals", "edge-1"): 4,
        ("sfedhp_refusals", "unknown"): 2,
    }
    assert b'sfedhp_member_up{member="edge-1"} 0.0' in exposition(kit_samples(tmp_path, {})).body


def test_damaged_lines_of_a_log_are_skipped(tmp_path):
    (tmp_path / "run").mkdir()
    good = json.dumps({"event": "refused", "member": "a", "times": 3})
    (tmp_path / "run/log.jsonl").write_text(f'{{"event": "refused", "mem\n{good}\n')
    assert refusals(tmp_path) == {"a": 3}
    assert not refusals(tmp_path / "absent")


def test_days_until_the_first_certificate_ends(tmp_path):
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    assert certificate_days(tmp_path) is None
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([])
    for folder, days in (("server", 30), ("member", 10)):
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=days))
            .sign(key, hashes.SHA256())
        )
        path = tmp_path / folder / "startup/x.crt"
        path.parent.mkdir(parents=True)
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    assert certificate_days(tmp_path) == pytest.approx(10, abs=0.01)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/broken.crt").write_text("no certificate")
    assert certificate_days(tmp_path) == pytest.approx(10, abs=0.01)


def test_sites_get_ports_one_after_another_where_the_file_says_so(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text("[monitor]\nport = 9100\n")
    assert read_federation(path).monitor == Monitor(9100)
    layout = lay_out(read_federation(path), experiment())
    assert [site.monitor for site in layout.sites] == list(range(9100, 9107))
    layout.write(layout.edges[1], tmp_path / "kit")
    assert read_site(tmp_path / "kit").monitor == 9102
    plain = lay_out(FederationFile(), experiment())
    plain.write(plain.cloud, tmp_path / "plain")
    assert "monitor" not in json.loads((tmp_path / "plain/sfedhp.json").read_text())
    assert read_site(tmp_path / "plain").monitor == 0
    with pytest.raises(InputError, match="set at most 65529"):
        lay_out(FederationFile(monitor=Monitor(65530)), experiment())


def test_a_role_serves_its_figures_on_loopback(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with_port = FederationFile(monitor=Monitor(port))
    layout = lay_out(with_port, experiment())
    layout.write(layout.cloud, tmp_path)
    log = EventLog(tmp_path / "run", "cloud")
    log.write_status(now=True, round=1)
    server = start_monitor(tmp_path, log, "cloud")
    assert server is not None
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        assert 'sfedhp_round{federation="sfedhp",site="cloud"} 1.0' in text
        assert start_monitor(tmp_path, log, "cloud") is None  # the port is in use: the role runs without
        lines = json_lines(tmp_path / "run/log.jsonl")
        assert f"Port {port} cannot be used" in lines[-1]["reason"]
    finally:
        server.stop()
    assert start_monitor(tmp_path, log, "bridge") is None
    assert start_monitor(tmp_path / "absent", log, "cloud") is None
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert start_monitor(tmp_path, log, "cloud") is None
    with pytest.raises(InputError, match=r"pip install 'sfedhp\[monitor\]'"):
        exposition([])


def test_the_grafana_board_asks_for_figures_that_exist():
    board = json.loads((ROOT / "tools/grafana/sfedhp.json").read_text(encoding="utf-8"))
    asked = re.findall(r"sfedhp_\w+", json.dumps([panel["targets"] for panel in board["panels"]]))
    assert set(asked) == HELP.keys() - {
        "sfedhp_finished",
        "sfedhp_status_age_seconds",
        "sfedhp_accuracy_percent",
    }

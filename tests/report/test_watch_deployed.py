"""The live page of a federation on NVIDIA FLARE in which a client is killed and returns."""

from __future__ import annotations

import http.client
import os
import re
import time
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sfedhp.report.watch import watch
from tests.support.deploy_memory import experiment

pytest.importorskip("nvflare", reason="the extra sfedhp[deploy] is not installed")

from sfedhp.deploy.federation_file import FederationFile, Monitor
from tests.support.deploy_processes import PATIENT, Fleet

pytestmark = pytest.mark.slow

SECONDS = 5.0  # within which the page shows what happened
UP = re.compile("idle|working|answered")


def shown_within(fleet, opened, text, seconds=SECONDS):
    """Wait until the page says this of the client, without restarting anything."""
    begun = time.monotonic()
    opened.page.locator("li[data-member=client-0-1]", has_text=text).wait_for(timeout=1000 * seconds)
    return time.monotonic() - begun


def figures(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        (sample.name, sample.labels.get("member", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_client_that_is_killed_and_returns_is_shown_within_seconds(browser, tmp_path):
    what = experiment(rounds=2000, edges=1)
    patient = replace(PATIENT, silent_seconds=60.0)  # the server itself gives no member up
    port = 42_000 + os.getpid() % 1000
    file = FederationFile(monitor=Monitor(port))
    with Fleet(tmp_path / "kits", what, patient, file=file) as fleet:
        fleet.start()
        fleet.until(lambda: fleet.edge_round("edge-0") >= (1, 1))
        server = watch([fleet.kits])
        server.start()
        try:
            with browser.open(server.address) as opened:
                shown_within(fleet, opened, UP)
                assert figures(port)[("sfedhp_member_up", "edge-0")] == 1
                assert 300 < figures(port)[("sfedhp_certificate_days", "")] < 4000
                fleet.send("client-0-1")
                gone = shown_within(fleet, opened, "silent")
                assert figures(port + 1)[("sfedhp_member_up", "client-0-1")] == 0
                before = len(fleet.events("client-0-1", "resumed"))
                fleet.until(lambda: len(fleet.events("client-0-1", "resumed")) > before)  # restarts it
                back = shown_within(fleet, opened, UP)
                assert max(gone, back) < SECONDS
                assert opened.errors == []
                print(f"gone after {gone:.1f} s, back after {back:.1f} s")
        finally:
            server.stop()

"""`sfedhp watch`: it names its address, answers, and ends with a signal."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys

from tests.support.paths import ROOT


def test_it_says_where_answers_and_ends(here, sfedhp, tiny):
    sfedhp("run", *tiny, "--out", "one", "--no-report")
    before = sorted(os.listdir("one"))
    child = subprocess.Popen(
        [sys.executable, "-m", "sfedhp", "watch", "one"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert child.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", child.stdout.readline())
        assert found is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=600)
        connection.request("GET", "/")
        text = connection.getresponse().read().decode()
        connection.close()
        assert "data-live" in text
        assert "2 edges with 4 clients, 3 rounds, seed 0." in text
        child.send_signal(signal.SIGTERM)
        _, stderr = child.communicate(timeout=600)
        assert stderr == "Stopped watching; the runs continue.\n"
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()
    assert sorted(os.listdir("one")) == before  # it wrote nothing


def test_bad_input_is_a_sentence(sfedhp, here):
    for words in (("absent",), ("tiny.npz",)):
        result = sfedhp("watch", *words)
        assert result.exit_code == 2
        assert "is not a folder" in result.stderr
    assert sfedhp("watch").exit_code == 2

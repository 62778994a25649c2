"""A run killed at ten random moments, and resumed each time, ends as the unbroken one, to the bit."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from sfedhp.cli import main
from tests.support.commands import CONTEXT
from tests.support.json_lines import json_lines, without_seconds

KILLS = 10
ROUNDS = 80
MOST = 5  # rounds a process gets before it is killed: ten times as many are fewer than all


def command(words, history, before, rounds, delay):
    """In the process, which kills itself: another one might be late, and the run over."""
    if rounds:
        threading.Thread(target=kill_after, args=(history, before, rounds, delay), daemon=True).start()
    main(words, prog_name="sfedhp")


def kill_after(history, before, rounds, delay):
    """Wait until the process has begun its own history file and written this many rounds to it; then die."""
    while not history.exists() or history.stat().st_ino == before:
        time.sleep(0.001)
    start = lines(history)
    while lines(history) < start + rounds:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def code_of(*words, history=None, before=None, rounds=0, delay=0.0):
    """The exit code of a command."""
    child = CONTEXT.Process(target=command, args=([*words], history, before, rounds, delay))
    child.start()
    child.join()
    return child.exitcode


def lines(history):
    return history.read_bytes().count(b"\n")


def rows(folder):
    return without_seconds(json_lines(folder / "history.jsonl"))


def weights(folder):
    files = [*folder.glob("models/*.safetensors"), folder / f"checkpoint/round-{ROUNDS:06d}.safetensors"]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow  # thirty kills of other runs are in test_kills.py
def test_ten_kills_change_nothing(here, tiny, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = [*tiny, f"rounds={ROUNDS}", "algorithm.edge_rounds=3", "checkpoint.every=3"]
    words += ["sampled_edges=1", "data.validation_per_label=1"]
    # The floor is where the clients' densities are: what a client kept decides its next step.
    words += ["algorithm.client_sparsity=0.01", "algorithm.sparsity_floor=0.35", "density_threshold=0.3"]
    unbroken, broken = here / "unbroken", here / "broken"
    assert code_of("run", *words, "--out", str(unbroken)) == 0
    table = json_lines(unbroken / "history.jsonl")
    one_round = sum(row["seconds"] for row in table) / ROUNDS
    draw = random.Random(0)
    history, inode, reached = broken / "history.jsonl", None, []
    for _ in range(KILLS):
        rounds, delay = draw.randint(1, MOST), draw.uniform(0, one_round)
        again = ("resume", str(broken)) if inode else ("run", *words, "--out", str(broken))
        assert code_of(*again, history=history, before=inode, rounds=rounds, delay=delay) == -signal.SIGKILL
        inode = history.stat().st_ino
        reached.append(lines(history))
    assert code_of("resume", str(broken)) == 0
    assert len(reached) == KILLS
    assert len(set(reached)) > 1, "the kills came at different moments"
    assert max(reached) < ROUNDS
    assert rows(broken) == rows(unbroken)
    assert len(rows(broken)) == ROUNDS
    assert weights(broken) == weights(unbroken)
    assert len(weights(broken)) == 1 + 2 + 4 + 1

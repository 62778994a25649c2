"""A run killed at ten random moments, and resumed each time, ends as the unbroken one, to the bit."""

from __future__ import annotations

import json
import random
import signal
import time

from sfedhp.cli import main
from tests.support.commands import CONTEXT

KILLS = 10
ROUNDS = 80
MOST = 5  # rounds a process gets before it is killed: ten times as many are fewer than all


def command(words):
    """In the process."""
    main(words, prog_name="sfedhp")


def started(*words):
    child = CONTEXT.Process(target=command, args=([*words],))
    child.start()
    return child


def ended(child):
    child.join(600)
    assert child.exitcode == 0


def wait_for(condition, child):
    deadline = time.monotonic() + 600
    while not condition():
        assert child.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def advance(history, child, before, rounds):
    """Wait until the process has begun its own history file and written so many rounds to it."""
    wait_for(lambda: history.exists() and history.stat().st_ino != before, child)
    start = lines(history)
    wait_for(lambda: lines(history) >= start + rounds, child)


def lines(history):
    return history.read_bytes().count(b"\n")


def rows(folder):
    table = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in table]


def weights(folder):
    files = [*folder.glob("models/*.safetensors"), folder / f"checkpoint/round-{ROUNDS:06d}.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def test_ten_kills_change_nothing(here, tiny, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = [*tiny, f"rounds={ROUNDS}", "algorithm.edge_rounds=3", "checkpoint.every=3"]
    words += ["sampled_edges=1", "data.validation_per_label=1"]
    # The floor lies where the clients' densities are: what a client kept decides its next step.
    words += ["algorithm.client_sparsity=0.01", "algorithm.sparsity_floor=0.35", "density_threshold=0.3"]
    unbroken, broken = here / "unbroken", here / "broken"
    ended(started("run", *words, "--out", str(unbroken)))
    table = [json.loads(line) for line in (unbroken / "history.jsonl").read_text().splitlines()]
    one_round = sum(row["seconds"] for row in table) / ROUNDS
    draw = random.Random(0)
    history, inode, reached = broken / "history.jsonl", None, []
    child = started("run", *words, "--out", str(broken))
    for _ in range(KILLS):
        advance(history, child, inode, draw.randint(1, MOST))
        time.sleep(draw.uniform(0, one_round))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        inode = history.stat().st_ino
        reached.append(lines(history))
        child = started("resume", str(broken))
    ended(child)
    assert len(reached) == KILLS
    assert len(set(reached)) > 1, "the kills came at different moments"
    assert max(reached) < ROUNDS
    assert rows(broken) == rows(unbroken)
    assert len(rows(broken)) == ROUNDS
    assert weights(broken) == weights(unbroken)
    assert len(weights(broken)) == 1 + 2 + 4 + 1

"""A run killed at ten random moments, and resumed each time, ends as the unbroken one, to the bit.

The processes are forked from a server that has imported everything once: a new interpreter for each would
spend the test's time on importing torch.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time

from sfedhp.cli import main

KILLS = 10
ROUNDS = 60


def command(words):
    """In the process."""
    main(words, prog_name="sfedhp")


def started(context, *words):
    child = context.Process(target=command, args=([*words],))
    child.start()
    return child


def ended(child):
    child.join(60)
    assert child.exitcode == 0


def opened(history, child, before):
    """Wait until the process has begun its own history file: from there on it is in its rounds."""
    deadline = time.monotonic() + 60
    while not history.exists() or history.stat().st_ino == before:
        assert child.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def rows(folder):
    table = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in table]


def weights(folder):
    files = [*folder.glob("models/*.safetensors"), folder / f"checkpoint/round-{ROUNDS:06d}.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def test_ten_kills_change_nothing(here, tiny, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sfedhp.cli.run", "sfedhp.cli.resume"])
    words = [*tiny, f"rounds={ROUNDS}", "algorithm.edge_rounds=5", "checkpoint.every=3"]
    words += ["sampled_edges=1", "data.validation_per_label=1"]
    # The floor lies where the clients' densities are: what a client kept decides its next step.
    words += ["algorithm.client_sparsity=0.01", "algorithm.sparsity_floor=0.5", "density_threshold=0.3"]
    unbroken, broken = here / "unbroken", here / "broken"
    ended(started(context, "run", *words, "--out", str(unbroken)))
    table = [json.loads(line) for line in (unbroken / "history.jsonl").read_text().splitlines()]
    whole = sum(row["seconds"] for row in table)
    # All the waiting together is shorter than the run, so that every kill meets a process that still runs.
    draw = random.Random(0)
    history, inode, reached = broken / "history.jsonl", None, []
    child = started(context, "run", *words, "--out", str(broken))
    for _ in range(KILLS):
        opened(history, child, inode)
        time.sleep(draw.uniform(0, whole / (KILLS + 1)))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        inode = history.stat().st_ino
        reached.append(len(rows(broken)) if history.read_text().endswith("\n") else 0)
        child = started(context, "resume", str(broken))
    ended(child)
    assert len(reached) == KILLS
    assert max(reached) < ROUNDS
    assert len(set(reached)) > KILLS // 3, "the kills came at different moments"
    assert rows(broken) == rows(unbroken)
    assert len(rows(broken)) == ROUNDS
    assert weights(broken) == weights(unbroken)
    assert len(weights(broken)) == 1 + 2 + 4 + 1

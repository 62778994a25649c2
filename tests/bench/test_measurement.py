"""Sides in processes of their own, rounds in turn, medians, and the rows made of them."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sfedhp.bench import comparison, measurement, sides, worker
from sfedhp.bench.cases import Case
from sfedhp.bench.ceilings import Ceilings
from sfedhp.bench.comparison import LOOP, OURS, compare, grow, loop_against_rivals, row_of
from sfedhp.bench.measurement import Plan, Side, Timing, measure
from sfedhp.bench.rivals import OF_CLONE, Rival, read_kinds
from sfedhp.config import to_dict
from sfedhp.core.errors import InputError

LIMITS = Ceilings(copy=1e9, matmul=1e10)
CASE = Case("sfedhp", "mlr")
TINY = Case("fedavg", "mlr", edges=1, clients_per_edge=2, rows=4, batch_size=2)
ONCE = Plan(pairs=1, warmups=1, threads=(1,))


class Scripted(Side):
    """A side that takes given seconds."""

    def __init__(self, name: str, seconds: dict[int, list[float]], log: list[tuple[str, int]]):
        self.name, self.seconds, self.log, self.peak_bytes = name, seconds, log, 10

    def round(self, threads: int) -> float:
        self.log.append((self.name, threads))
        return self.seconds[threads].pop(0)

    def count(self) -> tuple[int, int]:
        self.log.append((self.name, 0))
        return 100, 200


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A worker in this process sets the number of threads too."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_better_number_of_threads_counts_by_its_median() -> None:
    log: list[tuple[str, int]] = []
    quick = Scripted("quick", {1: [9, 5, 1, 7], 2: [9, 3, 2, 40]}, log)
    slow = Scripted("slow", {1: [9, 20, 30, 10], 2: [9, 60, 60, 60]}, log)
    timings = measure([quick, slow], Plan(pairs=3, warmups=1, patience=999), counted=("quick",))
    assert timings["quick"] == Timing(3, 2, 10, 3, 100, 200)
    assert timings["slow"] == Timing(20, 1, 10, 3, None, None)
    turn = [("quick", 1), ("slow", 1), ("quick", 2), ("slow", 2)]
    assert log == [("quick", 0), *turn * 4], "all sides run in turn, after the count"


def test_patience_ends_a_long_measurement() -> None:
    side = Scripted("side", {1: [100.0] * 9}, [])
    timings = measure([side], Plan(pairs=5, warmups=5, threads=(1,), patience=150))
    assert timings["side"].rounds == 2
    assert len(side.log) == 4


def test_a_row_has_the_ratio_of_theirs_to_ours_and_the_shares() -> None:
    timings = {OURS: Timing(0.5, 2, 1000, 5, 10**9, 10**8), "other": Timing(2.0, 1, 3000, 5, None, None)}
    row = row_of(CASE, timings, "other", LIMITS)
    assert (row.algorithm, row.model, row.device, row.against) == ("sfedhp", "mlr", "cpu", "other")
    assert row.seconds_per_round == 0.5
    assert row.against_seconds_per_round == 2.0
    assert row.ratio == 4.0
    assert (row.peak_bytes, row.against_peak_bytes) == (1000, 3000)
    assert (row.threads, row.against_threads) == (2, 1)
    # 10⁹ operations in half a second of 10¹⁰ a second; 10⁸ bytes of 10⁹
    assert (row.matmul_share, row.copy_share) == (0.2, 0.2)
    assert row.against_matmul_share is None
    alone = row_of(CASE, timings, None, LIMITS)
    assert (alone.against, alone.ratio, alone.against_seconds_per_round) == (None, None, None)


def test_the_loop_is_held_against_rivals_that_run_the_same_method() -> None:
    timings = {
        OURS: Timing(1.0, 1, 1, 5, None, None),
        LOOP: Timing(3.0, 1, 1, 5, None, None),
        "pfedme": Timing(2.0, 1, 1, 5, None, None),
    }
    rows = [
        row_of(Case(method, "mlr"), timings, against, LIMITS)
        for method in ("pfedme", "sfedhp")
        for against in (LOOP, "pfedme", None)
    ]
    assert [(row.algorithm, row.against, times) for row, times in loop_against_rivals(rows)] == [
        ("pfedme", "pfedme", 1.5)
    ], "the pFedMe code has no sFedHP"


def test_two_processes_make_a_row() -> None:
    # It has no Per-FedAvg and is not even started.
    without = [Rival("flower", "nowhere", read_kinds(OF_CLONE)["flower"])]
    rows = compare(replace(TINY, method="perfedavg"), without, ONCE, LIMITS)
    assert [row.against for row in rows] == [LOOP]
    row = rows[0]
    assert row.against_seconds_per_round is not None
    assert row.ratio == row.against_seconds_per_round / row.seconds_per_round
    assert row.clients == 2
    assert row.peak_bytes > 0
    assert row.matmul_share is not None
    assert row.matmul_share > 0
    assert json.loads(json.dumps(asdict(row)))["algorithm"] == "perfedavg"


@pytest.mark.slow
def test_growth_shows_more_clients_then_more_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "FEDERATIONS", ((2, 11),))
    monkeypatch.setattr(comparison, "STACKS", (2,))
    monkeypatch.setattr(comparison, "GROWTH_ROWS", 4)
    rows = list(grow(Case("fedavg", "mlr"), ONCE, LIMITS))
    assert [(row.clients, row.runs, row.against) for row in rows] == [(22, 1, None), (20, 2, None)]


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def build(job):\n    raise RuntimeError('no luck.')\n", encoding="utf-8")
    job = {"file": str(broken), "function": "build", "device": "cpu"}
    with pytest.raises(InputError, match=r"^it cannot be measured: RuntimeError: no luck\.$"):
        Side("it", job)
    broken.write_text("import os\ndef build(job):\n    return lambda: os._exit(7)\n", encoding="utf-8")
    with Side("it", job) as side, pytest.raises(InputError, match="exit code 7"):
        side.round(1)
    with pytest.raises(InputError, match=r"it cannot be measured"):
        side_of_a_dead_interpreter(job)
    with pytest.raises(InputError, match="cannot be run"):
        Side("it", job, str(tmp_path / "python"))


def side_of_a_dead_interpreter(job: dict[str, Any]) -> Side:
    """One that does not even read."""
    return Side("it", {**job, "padding": "x" * 2**20}, "/bin/false")


def test_a_side_that_will_not_leave_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "_LEAVE", 0.2)
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import threading, time\n"
        "def build(job):\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    print('words that are no answer')\n"
        "    return lambda: None\n",
        encoding="utf-8",
    )
    with Side("it", {"file": str(stubborn), "function": "build", "device": "cpu"}) as side:
        assert 0 <= side.round(1) < 60


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("function", ["ours", "loop"])
def test_a_worker_times_and_counts_rounds(function: str, tmp_path: Path) -> None:
    source = tmp_path / "data.npz"
    TINY.write_data(source)
    job = {
        "file": sides.__file__,
        "function": function,
        "device": "cpu",
        "configs": [to_dict(experiment) for experiment in TINY.experiments(source)],
    }
    ready, first, counted = talk(job, {"threads": 1}, {"count": True})
    assert ready == {"ready": True}
    assert first["seconds"] > 0
    assert first["peak_bytes"] >= 0
    # Two clients, 20 steps, forward and the gradient of the weights: 2 · 2 rows · 784 · 3 classes each.
    steps = 2 * 20 * 2 * (2 * 2 * 784 * 3)
    assert steps <= counted["operations"] < 1.1 * steps


def talk(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What a worker answers."""
    answers = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_a_worker_answers_on_its_own_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    side = tmp_path / "side.py"
    side.write_text(
        "import os\ndef build(job):\n    os.write(1, b'hello')\n    return int\n", encoding="utf-8"
    )
    job = {"file": str(side), "function": "build", "device": "cpu"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job) + "\n"))
    kept = os.dup(1)
    try:
        worker.main()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert capfd.readouterr().out == '{"ready": true}\n'

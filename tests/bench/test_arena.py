"""Arenas: the same protocol for every side, and records of what was measured."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sfedhp.bench.arena import Entry, Terms, record_of, run_arena, write_record
from sfedhp.bench.arena_sides import Loop, pixels, simulation
from sfedhp.bench.arenas import ARENAS, Arena
from sfedhp.bench.rivals import OF_CLONE, Rival, read_kinds
from sfedhp.core.errors import InputError
from tests.support.invoking import invoke

LAYERS = (("Conv2d", 1, 2, 3), ("ReLU",), ("Flatten",), ("Dropout", 0.25), ("Linear", 32, 10))
TINY = Arena("tiny", "mnist", (1, 6, 6), LAYERS, 6, 5, 2, 4, 2, 2, 0.1, 2)
TERMS = Terms(4, synthetic=True, device="cpu", precision="float32", threads=1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    TINY.write_data(tmp_path / "data.npz", synthetic=True)
    return tmp_path / "data.npz"


def test_networks_are_those_that_others_publish():
    sizes = {
        name: sum(part.numel() for part in arena.network().parameters()) for name, arena in ARENAS.items()
    }
    assert sizes == {
        "pfl-cifar10": 1_626_442,
        "flute-lr-mnist": 7_850,
        "blazefl": 62_006,
        "pfllib-cnn": 582_026,
    }
    for arena in ARENAS.values():
        module = arena.network()
        assert module(torch.zeros(2, *arena.shape)).shape == (2, 10)
        first = next(part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Linear))
        assert first.bias is not None
        assert not first.bias.any()
        assert torch.equal(first.weight, next(arena.network().parameters()))


def test_rows_are_dealt_once_and_shards_hold_few_labels(tmp_path: Path):
    for shards in (0, 2):
        arena = replace(TINY, rows=20, shards=shards)
        arena.write_data(tmp_path / "data.npz", synthetic=True)
        with np.load(tmp_path / "data.npz") as found:
            labels = found["labels"].reshape(6, 20)
            assert len(np.unique(found["inputs"].reshape(120, -1), axis=0)) == 120
            assert found["test_labels"].shape == (1000,)
        most = max(len(np.unique(own)) for own in labels)
        assert (most <= 4) == bool(shards)


def test_too_few_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few = np.zeros((10_010, 1, 6, 6), np.uint8), np.zeros(10_010, np.int64)
    monkeypatch.setattr(Arena, "_real", lambda arena: few)
    with pytest.raises(InputError, match="fewer than the 30 training rows"):
        TINY.write_data(tmp_path / "data.npz", synthetic=False)


def test_our_round_is_that_of_a_loop_over_epochs(data: Path):
    """Without dropout, of a client whose rows are one mini-batch, both take the very same steps."""
    arena = replace(TINY, layers=(*LAYERS[:3], LAYERS[4]), batch_size=5, cohort=6)
    simulator, (test, labels) = simulation(arena, data, "cpu", "float32")
    assert len(test) == len(labels) == 1000
    next(simulator.run(1))
    models = []
    with np.load(data) as held:
        inputs, targets = (
            pixels(held["inputs"]).view(6, 5, 1, 6, 6),
            torch.from_numpy(held["labels"]).view(6, 5),
        )
    for rows, own in zip(inputs, targets, strict=True):
        module = arena.network()
        optimizer = torch.optim.SGD(module.parameters(), lr=arena.rate)
        for _ in range(arena.epochs):
            optimizer.zero_grad()
            cross_entropy(module(rows), own).backward()
            optimizer.step()
        models.append(torch.cat([part.detach().flatten() for part in module.parameters()]))
    torch.testing.assert_close(simulator.state.served.state, torch.stack(models).mean(0))


def test_the_loop_learns(data: Path):
    loop = Loop(replace(TINY, cohort=6), data, "cpu", "float32")
    before = loop.accuracy()
    for _ in range(6):
        loop()
    assert loop.accuracy() > before + 10


@pytest.mark.slow
def test_a_whole_run_is_measured_and_fewer_rounds_are_extrapolated(tmp_path: Path):
    said: list[str] = []
    entries = run_arena(TINY, TERMS, [], said.append)
    assert [entry.side for entry in entries] == ["sfedhp", "loop"]
    assert said == ["tiny: sfedhp is ready.", "tiny: loop is ready."]
    for entry in entries:
        assert entry.rounds == 4
        assert not entry.extrapolated
        assert entry.seconds_per_round > 0
        assert 0 <= entry.accuracy <= 100
    assert entries[0].ratio == 1
    write_record(record_of(TINY, TERMS, entries), tmp_path / "deep" / "record.json")
    record = json.loads((tmp_path / "deep" / "record.json").read_text())
    assert record["arena"]["name"] == "tiny"
    assert record["weights"] == 350
    assert Entry(**record["entries"][1]) == entries[1]
    (alone,) = run_arena(TINY, replace(TERMS, rounds=2, loop=False), [], said.append)
    assert alone.extrapolated
    assert alone.whole_run_seconds > 2 * alone.seconds_per_round


def test_a_rival_without_an_adapter_for_arenas_is_refused(data: Path):
    rival = Rival("fluke", "python", read_kinds(OF_CLONE)["fluke"])
    with pytest.raises(InputError, match="no adapter for arenas"):
        rival.arena_side(TINY, "cpu", data, data)
    assert read_kinds(OF_CLONE)["pfl"].arenas


def test_the_command_prints_a_table_and_writes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ARENAS, "flute-lr-mnist", replace(TINY, name="flute-lr-mnist"))
    words = ["bench", "--arena", "flute-lr-mnist", "--synthetic", "--rounds", "1", "--no-loop"]
    done = invoke(*words, "--record", str(tmp_path / "record.json"))
    assert done.exit_code == 0, done.output
    assert "≈" in done.output
    assert "6 clients × 5 rows, 2 a round, 2 local epochs" in done.output
    assert (tmp_path / "record.json").exists()
    assert invoke(*words, "--cohort", "7").exit_code == 2


def test_the_command_measures_a_population(tmp_path: Path):
    words = ["bench", "--population", "5000", "--models", "mlr", "--cohort", "3", "--rounds", "2"]
    done = invoke(*words, "--record", str(tmp_path / "record.json"))
    assert done.exit_code == 0, done.output
    assert "5,000" in done.output
    (row,) = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert (row["clients"], row["cohort"], row["rounds"]) == (5000, 3, 2)
    assert 0 < row["draw_seconds"] < row["seconds_per_round"] < 60
    assert invoke(*words[:5], "--cohort", "1001").exit_code == 2

"""A population takes the very steps of a simulator of all its clients, and touches those drawn alone."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sfedhp.algorithms import APFL, FedAvg, HeurFedAMP, SFedHP
from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, key
from sfedhp.engine.population import KeyedRows, MappedRows, Population
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task

SEED, CLIENTS, DRAWN, SHAPE = 3, 7, 3, (2, 4, 4)
DRAW = np.random.default_rng(0)
SIZES = np.array([4, 6, 3, 5, 6, 4, 6])
STARTS = np.concatenate([[0], np.cumsum(SIZES)])
INPUTS = DRAW.normal(size=(SIZES.sum(), *SHAPE)).astype(np.float32)
LABELS = DRAW.integers(0, 3, SIZES.sum())


def network(*norm):
    torch.manual_seed(0)
    return Network(nn.Sequential(nn.Conv2d(2, 3, 3), *norm, nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)))


def simulator(algorithm, model):
    inputs, labels = torch.zeros(1, CLIENTS, 6, *SHAPE), torch.zeros(1, CLIENTS, 6, dtype=torch.int64)
    for client, (first, last) in enumerate(pairwise(STARTS)):
        inputs[0, client, : last - first] = torch.from_numpy(INPUTS[first:last])
        labels[0, client, : last - first] = torch.from_numpy(LABELS[first:last])
    ids = torch.arange(CLIENTS).unsqueeze(0)
    stream = key(SEED, ROLES["client"], ids)
    task = Task(model, inputs, labels, torch.from_numpy(SIZES).unsqueeze(0), stream, 2, min_rows=3)
    initial, statistics = model.initial()
    draw = key(SEED, ROLES["draw"])
    return Simulator(algorithm, task, ids, initial, statistics, draw, sampled=DRAWN)


@pytest.mark.parametrize("algorithm", [FedAvg(local_steps=2), APFL(local_steps=2), FedAvg(local_epochs=1)])
@pytest.mark.parametrize("norm", [(), (nn.BatchNorm2d(3),)])
def test_rounds_are_those_of_the_simulator(algorithm, norm, tmp_path: Path):
    np.save(tmp_path / "inputs.npy", INPUTS)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    wanted = simulator(algorithm, network(*norm))
    found = Population(algorithm, network(*norm), MappedRows(mapped, LABELS, STARTS), DRAWN, SEED, 2)
    for state, served in zip(wanted.run(4), found.run(4), strict=True):
        torch.testing.assert_close(served.state, state.served.state)
        torch.testing.assert_close(served.statistics, state.served.statistics)
    assert found.round == 4
    ever = {int(client) for turn in range(4) for client in found.drawn(turn)}
    keeps = bool(norm) or isinstance(algorithm, APFL)
    assert set(found.kept) == (ever if keeps else set())


class Counting:
    """Rows that note who asked for them."""

    def __init__(self, clients: int):
        self.clients, self.asked = clients, set[int]()
        self.own = KeyedRows(torch.from_numpy(INPUTS), torch.from_numpy(LABELS), clients, 4, SEED)

    def take(self, ids):
        self.asked |= set(ids.tolist())
        return self.own.take(ids)


def test_only_drawn_clients_are_touched():
    rows = Counting(100_000)
    population = Population(FedAvg(local_steps=1), network(), rows, 5, SEED, 2)
    for _ in population.run(2):
        pass
    assert len(rows.asked) == 10
    assert max(rows.asked) > 1000


def test_rows_by_key_are_a_clients_own_and_stay():
    rows = KeyedRows(torch.arange(50.0).view(50, 1), torch.arange(50), 10**6, 20, SEED)
    first = rows.take(torch.tensor([3, 999_999]))
    again = rows.take(torch.tensor([999_999]))
    assert first.inputs.shape == (2, 20, 1)
    assert torch.equal(first.labels[1], again.labels[0])
    assert not torch.equal(first.labels[0], first.labels[1])
    assert torch.equal(first.inputs.squeeze(-1).long(), first.labels)
    assert first.sizes.tolist() == [20, 20]


def test_mapped_rows_are_scaled():
    rows = MappedRows(np.full((4, 1), 255, np.uint8), np.arange(4), np.array([0, 1, 4]), scale=255)
    held = rows.take(torch.tensor([0, 1]))
    assert held.inputs.squeeze(-1).tolist() == [[1, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("algorithm", [SFedHP(), HeurFedAMP()])
def test_methods_whose_servers_hold_all_clients_are_refused(algorithm):
    with pytest.raises(InputError, match="cannot run on a population"):
        Population(algorithm, network(), MappedRows(INPUTS, LABELS, STARTS), DRAWN, SEED, 2)


@pytest.mark.parametrize("drawn", [0, CLIENTS + 1])
def test_a_cohort_fits(drawn):
    with pytest.raises(InputError, match="cannot be drawn"):
        Population(FedAvg(), network(), MappedRows(INPUTS, LABELS, STARTS), drawn, SEED, 2)

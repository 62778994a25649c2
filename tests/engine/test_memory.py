"""How many clients, and how many runs, fit at once."""

import ctypes
import os
import sys

import torch
from torch import nn

from sfedhp.engine import memory
from sfedhp.nn.models import build
from sfedhp.nn.network import Network


def network(name, shape):
    return build(name, shape=shape, classes=10, seed=0, dtype=torch.float32)


def test_more_memory_holds_more_clients(monkeypatch):
    perceptron = network("dnn", (28, 28))
    row = torch.rand(1, 28, 28)
    found = []
    for free in (2**20, 2**30, 2**34):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=free: free)
        found.append(memory.clients_that_fit(perceptron, row, 20, 4))
    assert found[0] == 1
    assert found[0] < found[1] < found[2]
    # Six copies of 494 710 weights are 11.9 MB, so half of 1 GiB holds some forty clients, ten an edge.
    assert 5 <= found[1] <= 12


def test_convolutions_are_counted_by_their_activations(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**34)
    images = torch.rand(1, 3, 32, 32)
    few = memory.clients_that_fit(network("vgg", (3, 32, 32)), images, 200, 1)
    many = memory.clients_that_fit(network("vgg", (3, 32, 32)), images, 2, 1)
    assert few < many / 10


def test_runs_are_counted_by_their_rows_and_their_clients_models(case, monkeypatch):
    """What a run takes: its rows of 6 float64 numbers, and eight vectors for each of its clients."""
    rows, clients = 1000, case.task.sizes.numel()
    each = 8 * (6 * rows + 8 * clients * case.task.network.d)
    for free, runs in ((2 * each - 1, 1), (2 * each, 1), (5 * each, 2), (20 * each, 10)):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=free: free)
        assert memory.runs_that_fit(case.task, rows) == runs


def test_freed_memory_is_kept_only_where_that_is_known(monkeypatch):
    asked = []
    library = type("Library", (), {"mallopt": lambda self, *option: asked.append(option)})()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "darwin")
    memory.keep_freed_memory()
    assert asked == []
    monkeypatch.setattr(sys, "platform", "linux")
    memory.keep_freed_memory()
    assert asked == [(-4, 0), (-1, 2**30)]


def test_free_memory_counts_what_the_system_would_give_back(tmp_path, monkeypatch):
    listed = tmp_path / "meminfo"
    listed.write_text("MemTotal:  24 kB\nMemFree:  5 kB\nMemAvailable:  20 kB\nHugePages_Total:  0\n")
    monkeypatch.setattr(memory, "_MEMINFO", listed)
    assert memory.free_memory(torch.device("cpu")) == 20 * 1024


def test_a_system_that_does_not_say_has_half_of_its_memory_free(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert memory.free_memory(torch.device("cpu")) == 5 * 4096


def test_this_machine_has_memory():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert whole / 100 < memory.free_memory(torch.device("cpu")) <= whole


def test_a_recurrent_layers_weights_count_once_for_all_times(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**34)
    short, long = (
        memory.clients_that_fit(network("lstm", (time, 2)), torch.rand(1, time, 2), 20, 1)
        for time in (50, 100)
    )
    # Each time step saves some ten vectors of 64 numbers, but not the 16 384 weights again.
    assert long > 2**33 / (2 * 20 * 100 * 64 * 20 * 4)
    assert 1.5 < short / long < 2.5


def test_masks_of_dropout_are_counted(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**34)
    plain, dropping = (
        memory.clients_that_fit(
            Network(nn.Sequential(nn.Linear(8, 999), nn.Dropout(p))), torch.rand(1, 8), 99, 1
        )
        for p in (0.0, 0.5)
    )
    assert dropping < 0.9 * plain

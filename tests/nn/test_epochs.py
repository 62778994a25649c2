"""Epochs: every row once, in a new order each time, and each client at its own pace."""

import torch
from torch import nn

from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.nn.epochs import Epochs
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task

SIZES = (7, 4, 1, 0, 8)
CLOCK = Clock(2, 1)


def task(sizes=SIZES, batch_size=3, width=8):
    """Clients whose only input is the number of the row."""
    rows = torch.arange(width, dtype=torch.float64).expand(len(sizes), width).unsqueeze(-1)
    stream = key(5, torch.arange(len(sizes)))
    labels = torch.zeros(len(sizes), width, dtype=torch.int64)
    network = Network(nn.Linear(1, 2).double())
    return Task(network, rows, labels, torch.tensor(sizes), stream, batch_size)


def read(whole, count, clock=CLOCK):
    """The row numbers of each client's mini-batches, batch by batch."""
    epochs = Epochs.of(whole, clock, count)
    batches = [epochs.batch(step) for step in range(epochs.steps)]
    return [
        [batch.inputs[client, batch.real[client], 0].long().tolist() for batch in batches]
        for client in range(len(whole.sizes))
    ]


def test_an_epoch_is_every_row_once_and_a_client_that_is_done_has_no_rows():
    for client, batches in enumerate(read(task(), count=2)):
        size = SIZES[client]
        steps = -(-size // 3)
        lengths = ([3] * (size // 3) + [size % 3] * (size % 3 > 0)) * 2
        assert [len(batch) for batch in batches] == lengths + [0] * (len(batches) - 2 * steps)
        first, second = batches[:steps], batches[steps : 2 * steps]
        for epoch in (first, second):
            assert sorted(row for batch in epoch for row in batch) == list(range(size))
        if size > 4:
            assert first != second


def test_the_order_depends_on_seed_client_and_clock_and_not_on_the_stack():
    whole = task()
    together = read(whole, count=2)
    for client, size in enumerate(SIZES):
        if size:
            alone = whole.map(lambda tensor, client=client, size=size: _cut(tensor, client, size))
            batches = read(alone, count=2)[0]
            assert batches == together[client][: len(batches)]
    assert read(whole, count=2, clock=Clock(2, 0)) != together
    assert read(whole, count=2, clock=Clock(3, 1)) != together


def _cut(tensor, client, size):
    """One client's rows without padding."""
    own = tensor[client : client + 1]
    return own[:, :size] if own.ndim > 1 else own


def test_a_batch_size_of_0_is_one_step_an_epoch():
    batches = read(task(batch_size=0), count=3)
    assert [len(batch) for batch in batches[0]] == [7, 7, 7]
    assert [len(batch) for batch in batches[3]] == [0, 0, 0]


def test_padding_is_possible_unless_all_clients_fill_their_batches():
    assert Epochs.of(task(), CLOCK, 1).may_pad
    full = task(sizes=(6, 6), width=6)
    full.min_rows = 6
    assert not Epochs.of(full, CLOCK, 1).may_pad
    full.batch_size = 4
    assert Epochs.of(full, CLOCK, 1).may_pad

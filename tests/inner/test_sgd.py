"""SGD with epochs, momentum and clipping: equal to a loop over `torch.optim.SGD`, client by client."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sfedhp.core.errors import InputError
from sfedhp.core.factored import dense
from sfedhp.core.keys import key
from sfedhp.core.scalars import PerRun
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.epochs import Epochs
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task

CLOCK = Clock(4, 1)
SIZES = torch.tensor([[9, 4, 1], [7, 0, 8]])
WIDTH, FEATURES, CLASSES, BATCH = 9, 6, 3, 3
OPTIONS = {
    "epochs": {"epochs": 2},
    "epochs, momentum": {"epochs": 2, "momentum": 0.9},
    "epochs, momentum, clip, pull": {"epochs": 3, "momentum": 0.5, "clip": 0.4, "proximity": 0.3},
    "steps, momentum": {"steps": 5, "momentum": 0.9},
    "steps, clip": {"steps": 5, "clip": 0.3},
}


class BatchNormNet(nn.Module):
    """A network with running statistics whose gradients autograd computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(rows))))


class Recurrent(nn.Module):
    """Rows as series of three times with two features."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.series, self.last = kind(2, 4, num_layers=2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(self.series(rows.view(-1, 3, 2))[0][:, -1])


def module(kind="mlp"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if kind in ("lstm", "gru"):
            return Recurrent(getattr(nn, kind.upper())).double()
        if kind == "norm":
            return BatchNormNet().double()
        if kind == "conv":
            parts = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
            return nn.Sequential(*parts, nn.Flatten(), nn.Linear(16, CLASSES)).double()
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES)).double()


def task(kind="mlp", sizes=SIZES, **options):
    generator = torch.Generator().manual_seed(0)
    shape = (1, 4, 4) if kind == "conv" else (FEATURES,)
    inputs = torch.randn(*sizes.shape, WIDTH, *shape, dtype=torch.float64, generator=generator)
    labels = torch.randint(CLASSES, (*sizes.shape, WIDTH), generator=generator)
    stream = key(1, torch.arange(sizes.numel()).reshape(sizes.shape))
    network = Network(module(kind))
    statistics = network.initial()[1].expand(*sizes.shape, network.s)
    return Task(network, inputs, labels, sizes, stream, BATCH, statistics=statistics, **options)


def descent(**options):
    return Descent(options.pop("steps", 99), 0.2, new_batch_each_step=True, **options)


def solve(whole, anchor, steps):
    """`minimize` at this clock, as a tensor."""
    return dense(minimize(whole, CLOCK, anchor, steps))


def batches_of(whole, options, place):
    """The (inputs, labels) of one client's steps."""
    if "epochs" in options:
        epochs = Epochs.of(whole, CLOCK, options["epochs"])
        drawn = [epochs.batch(step) for step in range(epochs.steps)]
    else:
        drawn = [whole.batch(CLOCK, step) for step in range(options["steps"])]
    for batch in drawn:
        real = batch.real[place]
        if real.any():
            yield batch.inputs[place][real], batch.labels[place][real]


def torch_loop(own, batches, options, weight_decay):
    """What anybody would write; the module is trained in place."""
    anchor = [parameter.detach().clone() for parameter in own.parameters()]
    optimizer = torch.optim.SGD(
        own.parameters(), lr=0.2, momentum=options.get("momentum", 0.0), weight_decay=weight_decay
    )
    own.train()
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(own(inputs), labels)
        pull = sum(((a - b) ** 2).sum() for a, b in zip(own.parameters(), anchor, strict=True))
        (loss + options.get("proximity", 0.0) / 2 * pull).backward()
        if "clip" in options:
            nn.utils.clip_grad_norm_(own.parameters(), options["clip"])
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in own.parameters()])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    ("kind", "decay", "plain"),
    [("mlp", 0.0, False), ("mlp", 0.1, True), ("norm", 0.1, True), ("conv", 0.1, False)],
)
def test_every_client_ends_where_a_torch_loop_on_the_same_mini_batches_ends(options, kind, decay, plain):
    # torch refuses to normalize one row, so that no last mini-batch may be one.
    sizes = SIZES if kind != "norm" else SIZES + (SIZES % BATCH == 1).long()
    whole = task(kind, sizes, weight_decay=decay, force_autograd=plain)
    own = module(kind)
    initial = Network(own).initial()[0]
    found = solve(whole, initial.expand(*sizes.shape, -1), descent(**options))
    for place in itertools.product(range(2), range(3)):
        if not sizes[place]:
            continue
        trained = copy.deepcopy(own)
        expected = torch_loop(trained, batches_of(whole, options, place), options, decay)
        assert_close(found[place], expected, rtol=0, atol=1e-10)
        assert whole.statistics is not None
        assert_close(whole.statistics[place], Network(trained).initial()[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_layers_are_trained_as_torchs(kind):
    """The stack has its own LSTM and GRU; the loop of each client has torch's."""
    options = {"epochs": 2, "momentum": 0.9, "clip": 0.5}
    whole, own = task(kind), module(kind)
    found = solve(whole, Network(own).initial()[0].expand(*SIZES.shape, -1), descent(**options))
    for place in itertools.product(range(2), range(3)):
        if SIZES[place]:
            trained = copy.deepcopy(own)
            assert type(trained.series) in (nn.LSTM, nn.GRU)
            expected = torch_loop(trained, batches_of(whole, options, place), options, 0.0)
            assert_close(found[place], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_client_alone_computes_what_it_computes_in_a_stack(kind):
    options = {"epochs": 2, "momentum": 0.9, "clip": 0.5}
    whole = task(kind)
    anchor = Network(module(kind)).initial()[0].expand(*SIZES.shape, -1)
    together = solve(whole, anchor, descent(**options))
    for place in itertools.product(range(2), range(3)):
        size = int(SIZES[place])
        if size:
            alone = task(kind).map(lambda tensor, place=place: tensor[place])
            alone = replace(alone, inputs=alone.inputs[:size], labels=alone.labels[:size])
            model = solve(alone, anchor[place], descent(**options))
            assert_close(model, together[place], rtol=0, atol=1e-12)
            assert_close(alone.statistics, whole.statistics[place], rtol=0, atol=1e-12)


@pytest.mark.parametrize("axes", [(), (1, 1), (2, 1)])
def test_clients_of_unequal_sizes_may_share_an_anchor_and_a_linear_term(axes):
    whole = task("mlp")
    one = Network(module("mlp")).initial()[0]
    shared = one.expand(*axes, -1)
    found = solve(whole, shared, descent(epochs=2, proximity=0.3, linear=0.1 * shared))
    each = one.expand(*SIZES.shape, -1).clone()
    alike = solve(whole, each, descent(epochs=2, proximity=0.3, linear=0.1 * each))
    assert_close(found, alike, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", [0.2, PerRun([0.2, 0.1])], ids=["one run", "two runs"])
@pytest.mark.parametrize("kind", ["mlp", "norm", "conv", "lstm"])
def test_clients_that_leave_the_stack_when_they_are_done_compute_what_they_compute_together(
    kind, rate, monkeypatch
):
    sizes = torch.tensor([[9, 3, 0], [5, 2, 3]])
    initial = Network(module(kind)).initial()[0]
    anchor = initial.expand(*sizes.shape, -1)
    scales = torch.arange(sizes.numel()).view(*sizes.shape, 1)
    steps = replace(
        descent(epochs=2, momentum=0.9, clip=0.5, proximity=0.3, sparsity=0.01 * scales),
        rate=rate,
        linear=0.01 * scales * initial,
    )
    apart, together = task(kind, sizes), task(kind, sizes)
    runs = int(isinstance(rate, PerRun))
    shapes = [tuple(stage.clients.shape) for stage in Epochs.of(apart, CLOCK, 2).stages(runs)]
    assert shapes == ([(2, 3), (2, 1)] if runs else [(5,), (2,), (1,)])
    found = solve(apart, anchor, steps)
    monkeypatch.setattr(Epochs, "stages", lambda *_: [])
    assert_close(found, solve(together, anchor, steps), rtol=0, atol=1e-12)
    assert_close(apart.statistics, together.statistics, rtol=0, atol=1e-12)


def test_no_client_waits_for_a_larger_one():
    sizes = torch.tensor([3, 0, 9, 4, 9])
    stages = Epochs.of(task(sizes=sizes), CLOCK, 1).stages()
    assert [stage.steps for stage in stages] == [range(1), range(1, 2), range(2, 3)]
    assert [stage.clients.tolist() for stage in stages] == [[2, 4, 3, 0], [2, 4, 3], [2, 4]]
    assert Epochs.of(task(sizes=torch.tensor([9, 7, 8])), CLOCK, 1).stages() == []
    assert Epochs.of(task(sizes=torch.tensor([0, 0])), CLOCK, 1).stages() == []


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_short_last_mini_batch_counts_its_own_rows_where_all_others_are_full(kind):
    """No drawn mini-batch has padding if every client has at least B rows, but the last of an epoch has."""
    sizes = torch.tensor([4, 5, 7])
    whole = task(kind, sizes, min_rows=4)
    assert not whole.may_pad
    own = module(kind)
    found = solve(whole, Network(own).initial()[0].expand(3, -1), descent(epochs=2))
    for client in range(3):
        trained = copy.deepcopy(own)
        expected = torch_loop(trained, batches_of(whole, {"epochs": 2}, client), {}, 0.0)
        assert_close(found[client], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["mlp", "norm", "conv"])
def test_steps_beyond_everyones_last_change_nothing(kind, monkeypatch):
    """On a GPU the steps are those of the widest table there is, which may be wider than any client."""
    sizes = torch.tensor([6, 3, 5])
    anchor = Network(module(kind)).initial()[0].expand(3, -1)
    exact, longer = task(kind, sizes), task(kind, sizes)
    monkeypatch.setattr(Epochs, "stages", lambda *_: [])
    expected = solve(exact, anchor, descent(epochs=2, momentum=0.9))
    monkeypatch.setattr(Epochs, "steps", property(lambda self: 2 * -(-WIDTH // BATCH)))
    assert torch.equal(solve(longer, anchor, descent(epochs=2, momentum=0.9)), expected)
    assert exact.statistics is not None
    assert longer.statistics is not None
    assert torch.equal(longer.statistics, exact.statistics)


def test_runs_of_a_stack_may_differ_in_momentum_and_clip():
    whole = task()
    anchor = Network(module()).initial()[0].expand(*SIZES.shape, -1)
    stacked = solve(whole, anchor, descent(epochs=1, momentum=PerRun([0.9, 0.5]), clip=PerRun([0.3, 9.0])))
    for run, (momentum, clip) in enumerate([(0.9, 0.3), (0.5, 9.0)]):
        alone = solve(task(), anchor, descent(epochs=1, momentum=momentum, clip=clip))
        assert_close(stacked[run], alone[run], rtol=0, atol=1e-14)


def test_a_last_mini_batch_of_one_row_cannot_be_normalized():
    whole = task("norm", torch.tensor([7]))
    with pytest.raises(InputError, match="leaves no client one row"):
        minimize(whole, CLOCK, Network(module("norm")).initial()[0].expand(1, -1), descent(epochs=1))


@pytest.mark.parametrize("other", [{"solver": "nesterov"}, {"tolerance": 0.1}, {"lookahead": 0.1}])
def test_options_that_have_no_meaning_together_are_refused(other):
    with pytest.raises(ValueError, match="plain steps"):
        descent(momentum=0.9, **other)

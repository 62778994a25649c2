"""Recurrent layers by plain operations, against those of torch."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from sfedhp.core.errors import InputError
from sfedhp.core.keys import key
from sfedhp.nn import recurrent, stacked_recurrent
from sfedhp.nn.network import Network, split
from sfedhp.nn.presets import Summary
from sfedhp.nn.probe import probe
from sfedhp.nn.recurrent import fuse, unfuse
from sfedhp.nn.task import GradientMethod, Task

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        (nn.LSTM, {"num_layers": 2, "proj_size": 3, "bias": False}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}),
        (nn.GRU, {"batch_first": True}),
        (nn.RNN, {"num_layers": 2, "batch_first": True}),
        (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
    ],
)
def test_outputs_states_and_gradients_are_torchs(kind, options, given, batched):
    torch.manual_seed(0)
    theirs = kind(4, 5, dtype=torch.float64, **options)
    ours = kind(4, 5, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    unfuse(ours)
    assert type(ours) is not kind
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    inputs = torch.randn(*((6, 7, 4) if batched else (6, 4)), dtype=torch.float64)
    state = None
    if given:
        _, end = theirs(inputs)
        state = (
            tuple(torch.randn_like(part) for part in end) if isinstance(end, tuple) else torch.randn_like(end)
        )
    found, expected = (module(inputs, state) for module in (ours, theirs))
    assert_close(found, expected, **EXACT)
    for module, (outputs, _) in ((ours, found), (theirs, expected)):
        outputs.square().sum().backward()
        assert module.weight_hh_l0.grad is not None
    for mine, others in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close(mine.grad, others.grad, **EXACT)
    assert type(fuse(ours)) is kind
    assert_close(ours(inputs, state), expected, **EXACT)


class Forecaster(nn.Module):
    def __init__(self, kind, given, **options):
        super().__init__()
        self.recurrent, self.given = kind(3, 5, **options), given
        self.start = nn.Parameter(torch.randn(7, 1, 5))
        self.head = nn.LazyLinear(2)

    def forward(self, series):
        state: Any = None
        if self.given:
            layers = self.recurrent.num_layers * (1 + self.recurrent.bidirectional)
            own = self.recurrent.proj_size or 5
            state = self.start[:layers].expand(-1, len(series), -1)
            hidden = state[..., :own].contiguous()
            state = (hidden, state.contiguous()) if isinstance(self.recurrent, nn.LSTM) else hidden
        outputs, end = self.recurrent(series.transpose(0, 1), state)
        ends = [part.transpose(0, 1).flatten(1) for part in (end if isinstance(end, tuple) else (end,))]
        return self.head(torch.cat([outputs[1], outputs[-1], *ends], -1))


STACKED = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bias": False}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"num_layers": 2, "proj_size": 4, "bidirectional": True}),
    (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    (nn.RNN, {"num_layers": 2, "bias": False}),
    (nn.RNN, {"nonlinearity": "relu"}),
]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize(("kind", "options"), STACKED)
def test_a_stack_of_clients_is_the_modules_one_by_one(kind, options, by_hand, given, rows, monkeypatch):
    if not by_hand:
        monkeypatch.setattr(recurrent, "way", lambda _: "unrolled")
    torch.manual_seed(0)
    forecaster = Forecaster(kind, given, **options).double()
    series = torch.randn(2, 3, rows, 6, 3, dtype=torch.float64)
    forecaster(series[0, 0])
    network = Network(forecaster.double())
    models = torch.randn(2, 3, network.d, dtype=torch.float64)
    weights = {name: part.clone().requires_grad_() for name, part in split(models, network.weights).items()}
    outputs, _ = network.run(weights, models[..., :0], series, torch.Size([2, 3]), train=True)
    grads = torch.autograd.grad(outputs.square().sum(), list(weights.values()), materialize_grads=True)
    for place in ((0, 0), (1, 2)):
        module: Any = network.build(models[place], torch.zeros(0))
        assert type(module.recurrent) is kind
        own = module.train()(series[place])
        assert_close(outputs[place], own, **EXACT)
        own.square().sum().backward()
        for grad, value in zip(grads, module.parameters(), strict=True):
            expected = torch.zeros_like(value) if value.grad is None else value.grad
            assert_close(grad[place], expected, **EXACT)


@pytest.mark.parametrize(
    ("kind", "way"),
    [(nn.LSTM, "by hand"), (nn.LSTM, "in turn"), (nn.GRU, "unrolled"), (nn.GRU, "in turn")],
)
def test_a_stack_drops_between_layers_what_each_client_drops(kind, way, monkeypatch):
    """A client alone runs its layers time by time, with the masks of its key."""
    monkeypatch.setattr(recurrent, "way", lambda _: way)
    torch.manual_seed(0)
    forecaster = Forecaster(kind, False, num_layers=3, dropout=0.4, bidirectional=True).double()
    series, labels = torch.randn(3, 4, 6, 3, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.int64)
    forecaster(series[0])
    network, keys = Network(forecaster.double()), key(torch.arange(3))
    task = Task(network, series, labels, torch.full((3,), 4), keys, 0, min_rows=4)
    assert (task.gradient_path.method is GradientMethod.CLIENT_BY_CLIENT) == (way == "in turn")
    models = torch.randn(3, network.d, dtype=torch.float64)
    batch = task.everything()._replace(keys=keys)
    grads = task.gradient(models, batch)
    for client in range(3):
        weights = {
            name: part.clone().requires_grad_()
            for name, part in split(models[client], network.weights).items()
        }
        alone, _ = network.run(weights, models[0, :0], series[client], torch.Size(), True, keys[client])
        loss = functional.cross_entropy(alone, labels[client])
        own = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        assert_close(grads[client], torch.cat([part.flatten() for part in own]), **EXACT)
        kept, _ = network.run(weights, models[0, :0], series[client], torch.Size(), False)
        assert not torch.allclose(alone, kept)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("way", "options"),
    [
        *itertools.product(
            ("by hand", "unrolled", "in turn"),
            ({}, {"num_layers": 2, "bidirectional": True}, {"bias": False}),
        ),
        ("unrolled", {"proj_size": 3}),  # layers with projections are never computed by hand
        ("in turn", {"proj_size": 3}),
    ],
)
def test_every_way_gives_the_gradients_of_torch_in_float32(way, options, monkeypatch):
    monkeypatch.setattr(recurrent, "way", lambda _: way)
    torch.manual_seed(0)
    forecaster = Forecaster(nn.LSTM, True, **options)
    series, labels = torch.randn(3, 4, 6, 3), torch.tensor([[0, 1, 1, 0]] * 3)
    forecaster(series[0])
    network = Network(forecaster)
    task = Task(network, series, labels, torch.full((3,), 4), key(torch.arange(3)), 0, min_rows=4)
    models = 0.3 * torch.randn(3, network.d)
    grads = task.gradient(models, task.everything())
    for client in range(3):
        module = network.build(models[client], torch.zeros(0)).train()
        functional.cross_entropy(module(series[client]), labels[client]).backward()
        own = torch.cat([part.grad.flatten() for part in module.parameters() if part.grad is not None])
        assert_close(grads[client], own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hidden", [8, 40])
def test_a_stack_computes_the_bits_of_its_parts(hidden):
    torch.manual_seed(0)
    task = series_task(hidden)
    grads = task.gradient(task.network.initial()[0].expand(6, -1), task.everything())
    for part in (slice(0, 1), slice(1, 3), slice(3, 6)):
        some = task.map(lambda tensor, part=part: tensor[part])
        model = some.network.initial()[0].expand(len(some.sizes), -1)
        assert torch.equal(some.gradient(model, some.everything()), grads[part])


def series_task(hidden):
    network = Network(nn.Sequential(Summary(3, hidden), nn.Linear(hidden, 4)))
    inputs, labels = torch.randn(6, 5, 7, 3), torch.randint(0, 4, (6, 5))
    return Task(network, inputs, labels, torch.full((6,), 5), key(torch.arange(6)), 0, min_rows=5)


def test_small_layers_of_all_clients_are_computed_together_and_large_ones_in_turn():
    way = stacked_recurrent.way
    assert way(nn.LSTM(3, 8)) == "by hand"
    assert way(nn.LSTM(3, 40)) == "in turn"
    assert way(nn.LSTM(3, 40).double()) == "by hand", "oneDNN has no function for float64"
    assert way(nn.LSTM(3, 40, bias=False)) == "by hand", "nor one without biases"
    assert way(nn.LSTM(3, 40, proj_size=4)) == way(nn.GRU(3, 40)) == "unrolled"
    assert way(nn.RNN(3, 200)) == "in turn"


@pytest.mark.parametrize(
    ("hidden", "method"), [(8, GradientMethod.AUTOGRAD), (40, GradientMethod.CLIENT_BY_CLIENT)]
)
def test_a_stack_computes_what_a_client_alone_does(hidden, method):
    task = series_task(hidden)
    assert task.gradient_path.method is method
    alone = task.map(lambda tensor: tensor[0])
    assert alone.gradient_path.method is GradientMethod.CLIENT_BY_CLIENT
    model = task.network.initial()[0]
    together = task.gradient(model.expand(6, -1), task.everything())
    assert_close(together[0], alone.gradient(model, alone.everything()), rtol=1e-5, atol=1e-6)


def test_what_would_be_computed_differently_is_refused():
    class Own(nn.LSTM):
        pass

    with pytest.raises(InputError, match=r"layer 0 \(Own\) cannot be stacked .* not a class derived from it"):
        Network(nn.Sequential(Own(4, 3)))

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 5)

        def forward(self, series):
            return self.lstm(nn.utils.rnn.pack_sequence(list(series)))[1][0][0]

    with pytest.raises(InputError, match="gives its LSTM a PackedSequence: give it a tensor"):
        probe(Network(Packed()), torch.randn(2, 4, 3), 5)

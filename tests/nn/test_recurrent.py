"""Recurrent layers by plain operations, against those of torch."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sfedhp.core.errors import InputError
from sfedhp.nn.network import Network, split
from sfedhp.nn.probe import probe
from sfedhp.nn.recurrent import fuse, unfuse

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
    def __init__(self, kind):
        super().__init__()
        self.recurrent = kind(3, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, series):
        return self.head(self.recurrent(series)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_stack_of_clients_is_the_modules_one_by_one(kind):
    torch.manual_seed(0)
    network = Network(Forecaster(kind).double())
    models = torch.randn(2, 3, network.d, dtype=torch.float64)
    series = torch.randn(2, 3, 4, 6, 3, dtype=torch.float64)
    weights = {name: part.clone().requires_grad_() for name, part in split(models, network.weights).items()}
    outputs, _ = network.run(weights, models[..., :0], series, torch.Size([2, 3]), train=True)
    grads = torch.autograd.grad(outputs.square().sum(), list(weights.values()))
    for place in ((0, 0), (1, 2)):
        module: Any = network.build(models[place], torch.zeros(0))
        assert type(module.recurrent) is kind
        own = module.train()(series[place])
        assert_close(outputs[place], own, **EXACT)
        own.square().sum().backward()
        for grad, value in zip(grads, module.parameters(), strict=True):
            assert_close(grad[place], value.grad, **EXACT)


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

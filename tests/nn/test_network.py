"""Modules as functions of flat vectors, and which of them have a hand-written pass."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from sfedhp.core.errors import InputError
from sfedhp.nn.mlp import match_mlp
from sfedhp.nn.network import Network, join, split
from sfedhp.nn.probe import probe
from tests.support.small_modules import tied


def perceptron(*between):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), *between, nn.Linear(3, 2))


class Normalized(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3, **options)

    def forward(self, inputs):
        return self.norm(self.first(inputs))


def test_a_flat_vector_is_the_parameters_in_order():
    module = perceptron(nn.ReLU())
    network = Network(module)
    model, statistics = network.initial()
    assert network.d == model.numel() == 23
    assert statistics.shape == (0,)
    assert torch.equal(model, torch.cat([value.detach().flatten() for value in module.parameters()]))


def test_split_and_join_undo_each_other():
    network = Network(Normalized())
    flat = torch.randn(2, 3, network.d)
    assert torch.equal(join(split(flat, network.weights), network.weights), flat)
    assert split(torch.zeros(2, 0), {}) == {}


class Tempered(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("seen", torch.tensor(5.0))

    def forward(self, inputs):
        return super().forward(inputs) / self.temperature


def test_a_parameter_may_be_a_single_number():
    network = Network(Tempered())
    assert (network.d, network.s) == (16, 1)
    probe(network, torch.randn(2, 4), 3)
    model, statistics = network.initial()
    assert split(model, network.weights)["temperature"].shape == ()
    assert split(model.expand(5, 2, -1), network.weights)["temperature"].shape == (5, 2)
    assert torch.equal(join(split(model, network.weights), network.weights), model)
    rows = torch.randn(2, 4)
    assert_close(network.build(2 * model, statistics)(rows), network.module(rows))


def test_a_stack_runs_as_its_modules_do():
    network = Network(Normalized())
    lead, rows = torch.Size([2, 3]), torch.randn(2, 3, 5, 4)
    models, running_stats = torch.randn(2, 3, network.d), torch.rand(2, 3, network.s)
    for train in (False, True):
        outputs, moved = network.run(split(models, network.weights), running_stats, rows, lead, train)
        for place in ((0, 0), (1, 2)):
            module: Any = network.build(models[place], running_stats[place]).train(train)
            assert_close(outputs[place], module(rows[place]))
            after = torch.cat([module.norm.running_mean, module.norm.running_var])
            assert_close(moved[place], after)
    alone, _ = network.run(
        split(models[0, 0], network.weights), running_stats[0, 0], rows[0, 0], torch.Size(), True
    )
    assert_close(alone, outputs[0, 0])


def test_a_state_dict_has_the_modules_own_names():
    network = Network(Normalized())
    state = network.state_dict(*network.initial())
    assert state.keys() == Normalized().state_dict().keys()
    assert all(value.is_contiguous() for value in state.values())


def test_the_module_that_was_given_stays_as_it_is():
    module = Normalized()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = Network(module)
    probe(network, torch.randn(2, 4), 3)
    network.build(torch.zeros(network.d), torch.zeros(network.s))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def _frozen():
    module = perceptron(nn.ReLU())
    module[1].requires_grad_(False)
    return module


def test_frozen_parameters_are_no_weights():
    module = _frozen()
    network = Network(module)
    assert list(network.weights) == ["3.weight", "3.bias"]
    assert network.d == 8
    assert list(network.fixed()) == ["1.weight", "1.bias"]
    models, rows = torch.randn(2, network.d), torch.randn(2, 5, 4)
    outputs, _ = network.run(
        split(models, network.weights), torch.zeros(2, 0), rows, torch.Size([2]), train=True
    )
    for place in range(2):
        built: Any = network.build(models[place], torch.zeros(0))
        assert torch.equal(built[1].weight, module[1].weight)
        assert [value.requires_grad for value in built.parameters()] == [False, False, True, True]
        assert_close(outputs[place], built(rows[place]))


def test_a_hand_written_pass_needs_all_parameters_to_train():
    assert Network(_frozen()).layers == ()
    convolutions = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    assert Network(convolutions).convnet is not None
    convolutions[0].bias.requires_grad_(False)
    assert Network(convolutions).convnet is None


class Constants(nn.Module):
    """Buffers of every kind that are no running statistics."""

    order: Tensor
    mask: Tensor
    factor: Tensor
    hidden: Tensor

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("factor", torch.tensor(3))
        self.register_buffer("hidden", torch.tensor([0.0, -torch.inf]), persistent=False)

    def forward(self, inputs):
        scores = self.head(inputs[:, self.order]) * self.factor
        return torch.where(self.mask, scores, self.hidden)


def test_buffers_that_are_no_statistics_stay_as_they_are():
    module = Constants()
    network = Network(module)
    assert network.s == 0
    probe(network, torch.randn(2, 4), 2)
    model, rows = network.initial()[0].expand(2, -1), torch.randn(2, 5, 4)
    outputs, _ = network.run(split(model, network.weights), torch.zeros(2, 0), rows, torch.Size([2]), True)
    assert_close(outputs, torch.stack([module(each) for each in rows]))
    assert outputs.isinf().any()
    built = network.build(model[0], torch.zeros(0))
    assert_close(built(rows[0]), outputs[0])
    assert all(torch.equal(value, module.get_buffer(name)) for name, value in built.named_buffers())


def test_runs_of_a_stack_share_what_is_fixed():
    one, other = Network(Constants()), Network(Constants())
    one.check_fixed(other)
    with torch.no_grad():
        other.module.get_buffer("order").copy_(torch.arange(4))
    with pytest.raises(InputError, match="order does not train and differs between the seeds"):
        one.check_fixed(other)


def _shared(layer=None):
    layer = layer or nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def _tied_buffers():
    module = nn.Sequential(Normalized(), nn.Linear(3, 3), nn.BatchNorm1d(3))
    module[2].running_mean = module[0].get_buffer("norm.running_mean")
    return module


@pytest.mark.parametrize(
    ("module", "aliases"),
    [
        (tied(), {"2.weight": "0.weight"}),
        (_shared(), {"2.weight": "0.weight", "2.bias": "0.bias"}),
        (_shared(nn.BatchNorm1d(4)), {f"2.{name}": f"0.{name}" for name in nn.BatchNorm1d(4).state_dict()}),
    ],
)
def test_a_tensor_under_two_names_is_one_and_saved_under_both(module, aliases):
    network = Network(module.double())
    assert network.aliases == aliases
    assert not network.layers
    parameters = list(module.parameters())
    assert network.d == sum(value.numel() for value in parameters)
    rows = torch.randn(2, 5, 4, dtype=torch.float64)
    models = torch.randn(2, network.d, dtype=torch.float64)
    statistics = torch.rand(2, network.s, dtype=torch.float64)
    weights = {name: part.clone().requires_grad_() for name, part in split(models, network.weights).items()}
    outputs, _ = network.run(weights, statistics, rows, torch.Size([2]), train=True)
    grads = torch.autograd.grad(outputs.square().sum(), list(weights.values()))
    for place in range(2):
        state = network.state_dict(models[place], statistics[place])
        assert state.keys() == module.state_dict().keys()
        assert all(torch.equal(state[name], state[first]) for name, first in aliases.items())
        built = network.build(models[place], statistics[place]).train()
        assert len(list(built.parameters())) == len(parameters)
        own = built(rows[place])
        assert_close(outputs[place], own)
        own.square().sum().backward()
        for grad, value in zip(grads, built.parameters(), strict=True):
            assert_close(grad[place], value.grad)


def test_tied_buffers_are_refused():
    with pytest.raises(InputError, match=r"buffers 0\.norm\.running_mean and 2\.running_mean are one tensor"):
        Network(_tied_buffers())


class Tuned(nn.Module):
    """A body whose batch norm is frozen by `.eval()`, and a head that trains."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.norm, self.head = nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.body.get_buffer("1.running_mean").fill_(0.5)
        self.body.requires_grad_(False).eval()

    def forward(self, inputs):
        return self.head(self.norm(self.body(inputs)))


def test_parts_in_evaluation_mode_stay_in_it():
    module: Any = Tuned().double()
    network = Network(module)
    assert list(network.buffers) == ["norm.running_mean", "norm.running_var"]
    assert "body.1.running_mean" in network.fixed()
    models = torch.randn(2, network.d, dtype=torch.float64)
    statistics, rows = torch.rand(2, network.s).double(), torch.randn(2, 6, 4, dtype=torch.float64)
    outputs, moved = network.run(
        split(models, network.weights), statistics, rows, torch.Size([2]), True, torch.arange(2)
    )
    for place in range(2):
        built: Any = network.build(models[place], statistics[place])
        assert Network(built).buffers == network.buffers
        built.train().body.eval()
        assert_close(outputs[place], built(rows[place]))
        assert_close(moved[place], torch.cat([built.norm.running_mean, built.norm.running_var]))
        assert torch.equal(built.body[1].running_mean, module.body[1].running_mean)


def test_a_module_that_is_wholly_in_evaluation_mode_trains_like_any_other():
    assert list(Network(Tuned().eval()).buffers)[:1] == ["body.1.running_mean"]
    convolutions = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    )
    assert Network(convolutions.eval()).convnet is not None
    convolutions.train()[1].eval()
    assert Network(convolutions).convnet is None


class Tokens(nn.Module):
    def __init__(self, pooled=True):
        super().__init__()
        self.embed, self.head, self.pooled = nn.Embedding(7, 5, padding_idx=0), nn.Linear(5, 3), pooled

    def forward(self, tokens):
        embedded = self.embed(tokens)
        return self.head(embedded.mean(1) if self.pooled else embedded)


def test_a_module_with_an_embedding_gets_integers():
    network = Network(Tokens())
    assert network.dry_run(torch.Size([4]), torch.float32).takes_integers
    assert not network.dry_run(torch.Size([4]), torch.int64).takes_integers
    assert not Network(nn.Linear(4, 3)).dry_run(torch.Size([4]), torch.float32).takes_integers
    tokens = torch.tensor([[1, 2, 3, 6], [0, 0, 0, 0]])
    probe(network, tokens.float(), 3)
    model, statistics = network.initial()
    weights = split(model, network.weights)
    outputs, _ = network.run(weights, statistics, tokens.float(), torch.Size(), train=True)
    assert_close(outputs, network.build(model, statistics)(tokens))
    again, _ = network.run(weights, statistics, tokens, torch.Size(), train=True)
    assert torch.equal(outputs, again)


def test_a_layer_that_is_used_twice_under_one_name_is_fine():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs):
            return self.layer(torch.tanh(self.layer(inputs)))

    probe(Network(Twice()), torch.randn(2, 4), 4)


@pytest.mark.parametrize("name", ["first.weight", "norm.running_var"])
def test_a_module_that_begins_with_nan_is_refused(name):
    module = Normalized()
    module.state_dict()[name].flatten()[0] = torch.nan
    with pytest.raises(InputError, match=f"The model's {name} holds NaN or infinite values before"):
        probe(Network(module), torch.randn(2, 4), 3)


@pytest.mark.parametrize(
    ("module", "word"),
    [
        (perceptron().requires_grad_(False), "no parameters to train"),
        (Normalized(momentum=None), "momentum=None"),
        (nn.Sequential(nn.Flatten()), "no parameters"),
        (nn.Linear(4, 3, dtype=torch.complex64), "not real"),
    ],
)
def test_what_cannot_be_stacked_is_refused(module, word):
    with pytest.raises(InputError, match=word):
        Network(module)


class Twice(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).expand(2, len(inputs), -1)


@pytest.mark.parametrize(
    ("module", "classes", "word"),
    [
        (nn.Linear(5, 3), 3, "check its input shape"),
        (Twice(4, 3), 3, "one vector of scores"),
        (nn.Linear(4, 3), 2, "2 classes"),
    ],
)
def test_a_module_that_does_not_fit_the_data_is_refused(module, classes, word):
    with pytest.raises(InputError, match=word):
        probe(Network(module), torch.randn(2, 4), classes)


class Pair(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs), inputs


class Raising(nn.Linear):
    def __init__(self, error):
        super().__init__(4, 3)
        self.error = error

    def forward(self, inputs):
        raise self.error


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (Pair(4, 3), "The model Pair returns a tuple: its forward must return one tensor of scores."),
        (Raising(KeyError("name")), r"The model Raising does not run .* \(KeyError: 'name'\): check"),
        (Raising(AssertionError()), r"The model Raising does not run .* \(AssertionError\): check"),
        (Raising(ZeroDivisionError("one\ntwo")), r"The model Raising .* \(ZeroDivisionError: one\): check"),
    ],
)
def test_an_error_in_a_forward_becomes_one_sentence(module, sentence):
    with pytest.raises(InputError, match=sentence) as found:
        probe(Network(module), torch.randn(2, 4), 3)
    assert "\n" not in str(found.value)


def test_a_module_that_fits_is_not_refused():
    probe(Network(nn.Linear(4, 3)), torch.randn(2, 4), None)
    probe(Network(perceptron(nn.ReLU())), torch.randn(2, 2, 2), 2)


def test_linear_layers_with_relu_between_are_matched():
    layers = Network(perceptron(nn.ReLU())).layers
    assert [(layer.start, layer.inputs, layer.outputs) for layer in layers] == [(0, 4, 3), (15, 3, 2)]
    assert Network(perceptron(nn.ReLU())).flattens
    nested = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    assert Network(nested).layers == layers
    assert not Network(nested).flattens
    assert len(Network(nn.Linear(4, 3)).layers) == 1


def _hooked():
    module = perceptron(nn.ReLU())
    module[1].register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    "module",
    [
        perceptron(nn.Tanh()),
        perceptron(),
        perceptron(nn.ReLU(), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 3, bias=False)),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)),
        Twice(4, 3),
        Normalized(),
        _hooked(),
    ],
)
def test_other_modules_have_no_hand_written_pass(module):
    assert Network(module).layers == ()


def test_a_layer_in_two_places_is_not_two_layers():
    assert match_mlp(_shared()) == ((), False)

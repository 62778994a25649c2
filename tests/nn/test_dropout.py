"""Dropout by keys: against masks read out, alone and stacked, and all that torch's functions accept."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from sfedhp.core.errors import InputError
from sfedhp.core.factored import dense
from sfedhp.core.keys import key, words
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.dropout import DropoutCall, KeyedDropout, keyed
from sfedhp.nn.network import Network, split
from sfedhp.nn.probe import probe
from sfedhp.nn.task import GradientMethod, Task

LEAD = (2, 3)
CLOCK = Clock(4, 1)
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


def stack(network, shape, sizes=9, rows=9, batch_size=4, lead=LEAD):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(*lead, rows, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (*lead, rows), generator=generator)
    held = torch.full(lead, 0) + torch.as_tensor(sizes)
    ids = torch.arange(math.prod(lead)).view(lead)
    return Task(network, inputs, labels, held, key(7, ids), batch_size, min_rows=int(held.min()))


def alone(task, place):
    """A client of a stack, with its own rows only."""
    one = task.map(lambda tensor: tensor[place])
    rows = int(one.sizes)
    one.inputs, one.labels, one.min_rows = one.inputs[:rows], one.labels[:rows], rows
    return one


def models(network, lead=LEAD):
    start = network.initial()[0].double()
    noise = torch.randn(*lead, network.d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return start + 0.1 * noise


def read_mask(keys, call, shape, p):
    """The mask of a call, written down a second time."""
    draws = words(key(keys, call), math.prod(shape)).double()
    return ((draws + 2**31) / 2**32 >= p).view(shape)


def perceptron(p=0.3):
    return nn.Sequential(
        nn.Linear(5, 8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 6), nn.Dropout(p), nn.Linear(6, 3)
    )


@pytest.mark.parametrize("new_batch_each_step", [True, False])
def test_steps_are_those_of_a_plain_loop_with_the_masks_read_out(new_batch_each_step):
    network = Network(perceptron().double())
    task, start = stack(network, (5,)), models(network)
    descent = Descent(steps=3, rate=0.1, proximity=0.5, new_batch_each_step=new_batch_each_step)
    stacked = dense(minimize(task, CLOCK, start, descent))
    for place in ((0, 0), (1, 2)):
        one = alone(task, place)
        assert_close(minimize(one, CLOCK, start[place], descent), stacked[place], **EXACT)
        first, second, last = (nn.Linear(*sizes).double() for sizes in ((5, 8), (8, 6), (6, 3)))
        by_hand = nn.ModuleList([first, second, last])
        nn.utils.vector_to_parameters(start[place], by_hand.parameters())
        anchor = [value.detach().clone() for value in by_hand.parameters()]
        for step in range(3):
            batch = one.batch(CLOCK, step if new_batch_each_step else 0)
            assert batch.keys is not None
            keys = key(batch.keys, step) if step and not new_batch_each_step else batch.keys
            hidden = first(batch.inputs).relu() * read_mask(keys, 0, (4, 8), 0.3) / 0.7
            outputs = last(second(hidden) * read_mask(keys, 1, (4, 6), 0.3) / 0.7)
            loss = functional.cross_entropy(outputs, batch.labels)
            grads = torch.autograd.grad(loss, list(by_hand.parameters()))
            with torch.no_grad():
                for value, grad, center in zip(by_hand.parameters(), grads, anchor, strict=True):
                    value.sub_(0.1 * (grad + 0.5 * (value - center)))
        assert_close(nn.utils.parameters_to_vector(by_hand.parameters()), stacked[place], **EXACT)


def test_every_step_client_and_layer_has_masks_of_its_own():
    network = Network(perceptron(0.5).double())
    task = stack(network, (5,))
    assert task.gradient_path.method is GradientMethod.AUTOGRAD
    keys = torch.stack(
        [task.batch(CLOCK, number).at_step(step).keys for number in range(2) for step in range(2)]
    ).flatten()
    masks = torch.stack([read_mask(own, call, (64,), 0.5) for own in keys for call in range(2)])
    assert len(masks.unique(dim=0)) == 2 * len(keys)
    assert 0.4 < masks.double().mean() < 0.6
    assert torch.equal(read_mask(key(5), 0, (9,), 0.5)[:7], read_mask(key(5), 0, (7,), 0.5))


class Kinds(nn.Module):
    """Every kind of dropout, in layouts with the rows first and not first."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Linear(4, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.lstm = nn.LSTM(8, 6, 2, dropout=0.3, batch_first=batch_first)
        self.channels = nn.ModuleList([nn.Dropout1d(0.2), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.1)])
        self.head = nn.Linear(6, 3)

    def forward(self, inputs):
        values = self.embed(inputs)
        values = values if self.batch_first else values.transpose(0, 1)
        values = self.lstm(self.encoder(values))[0]
        for part in self.channels:
            values = part(values)
        values = functional.dropout(values, 0.4, self.training)
        return self.head(values.mean(1 if self.batch_first else 0))


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_client_alone_drops_as_in_a_stack_with_padding(batch_first):
    module: Any = Kinds(batch_first)
    for part in () if batch_first else module.channels[::2]:
        part.p = 0.0  # whole channels need the rows first
    network = Network(module.double())
    task = stack(network, (5, 4), sizes=torch.tensor([[9, 2, 5], [1, 9, 3]]))
    start = models(network)
    batch = task.batch(CLOCK)
    together = task.gradient(start, batch)
    assert together.isfinite().all()
    for place in ((0, 0), (0, 1), (1, 0), (1, 2)):
        one = alone(task, place)
        assert_close(one.gradient(start[place], one.batch(CLOCK)), together[place], **EXACT)
    without = task.gradient(start, batch._replace(keys=None))
    assert not torch.allclose(without, together)
    assert torch.equal(task.gradient(start, batch), together)


def test_batch_norm_beside_dropout_sees_the_same_rows_alone():
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)).double()
    network = Network(module)
    task, start = stack(network, (5,), sizes=torch.tensor([[9, 2, 5], [3, 9, 3]])), models(network)
    task.statistics = torch.ones(*LEAD, network.s, dtype=torch.float64)
    together = task.gradient(start, task.batch(CLOCK))
    for place in ((0, 1), (0, 2), (1, 2)):
        one = alone(task, place)
        one.statistics = torch.ones(network.s, dtype=torch.float64)
        assert_close(one.gradient(start[place], one.batch(CLOCK)), together[place], **EXACT)
        assert_close(one.statistics, task.statistics[place], **EXACT)


def test_evaluation_drops_nothing():
    network = Network(Kinds().double())
    task, start = stack(network, (5, 4)), models(network)
    scores = task.scores(start, task.inputs)
    for place in ((0, 0), (1, 2)):
        built = network.build(start[place], torch.zeros(0))
        assert type(built.lstm) is nn.LSTM
        assert_close(scores[place], built(task.inputs[place]), **EXACT)


def run_mode(function, values, *args, p=0.25, **kwargs):
    """The result of a dropout function, and the mask it used."""
    masks = []

    def mask(shape, rate, device):
        assert rate == p
        masks.append(torch.rand(shape, generator=torch.Generator().manual_seed(3)) >= rate)
        return masks[-1]

    with KeyedDropout(mask):
        result = function(values, *args, **kwargs)
    return result, masks


@pytest.mark.parametrize(
    ("function", "shape", "mask_shape"),
    [
        (functional.dropout, (3, 4), (3, 4)),
        (functional.dropout1d, (3, 4, 5), (3, 4, 1)),
        (functional.dropout1d, (4, 5), (4, 1)),
        (functional.dropout2d, (3, 4, 5, 6), (3, 4, 1, 1)),
        (functional.dropout3d, (3, 4, 5, 6, 7), (3, 4, 1, 1, 1)),
        (functional.dropout3d, (4, 5, 6, 7), (4, 1, 1, 1)),
    ],
)
def test_what_is_kept_is_scaled(function, shape, mask_shape):
    values = torch.rand(shape) + 1
    result, (mask,) = run_mode(function, values, 0.25, True)
    assert mask.shape == mask_shape
    assert_close(result, values * mask / 0.75)
    changed = values.clone()
    result, _ = run_mode(function, changed, 0.25, True, True)
    assert result is changed
    assert_close(changed, values * mask / 0.75)
    assert run_mode(lambda each: function(each, 0.25, False), values)[0] is values
    assert not run_mode(lambda each: function(each, 1.0, True), values)[0].any()


@pytest.mark.parametrize(
    ("function", "mask_shape"),
    [(functional.alpha_dropout, (500, 400)), (functional.feature_alpha_dropout, (500, 400))],
)
def test_alpha_dropout_keeps_mean_and_variance(function, mask_shape):
    values = torch.randn(500, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result, (mask,) = run_mode(function, values, 0.25, True)
    assert mask.shape == mask_shape
    assert abs(result.mean()) < 0.02
    assert abs(result.var() - 1) < 0.02
    torch.manual_seed(0)
    torchs = function(values, 0.25, True)
    # What is dropped becomes one value, what is kept is a·x + b: both as torch's.
    assert_close(result[~mask].unique(), torch.mode(torchs.flatten()).values.reshape(1))
    both = mask & (torchs != torchs.flatten().mode().values)
    assert_close(result[both], torchs[both])


def test_attention_is_torchs():
    torch.manual_seed(0)
    query, keys, values = (torch.randn(2, 4, 5, 6, dtype=torch.float64) for _ in range(3))
    few = torch.randn(2, 2, 5, 6, dtype=torch.float64)
    attend = functional.scaled_dot_product_attention
    allowed = torch.rand(5, 5) > 0.4
    allowed[2] = False
    for options in (
        {},
        {"is_causal": True},
        {"attn_mask": allowed},
        {"attn_mask": torch.randn(5, 5, dtype=torch.float64), "scale": 0.3},
    ):
        expected = attend(query, keys, values, **options)
        with KeyedDropout(None):
            assert_close(attend(query, keys, values, **options), expected, **EXACT)
    expected = attend(query, few, few, enable_gqa=True)
    with KeyedDropout(None):
        assert_close(attend(query, few, few, enable_gqa=True), expected, **EXACT)


def test_attention_drops_weights():
    query, keys, values = (torch.randn(2, 5, 6, dtype=torch.float64) for _ in range(3))
    result, (mask,) = run_mode(functional.scaled_dot_product_attention, query, keys, values, dropout_p=0.25)
    weights = (query @ keys.mT / math.sqrt(6)).softmax(-1)
    assert_close(result, (weights * mask / 0.75) @ values, **EXACT)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention_is_torchs_and_drops_weights(need_weights):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, dropout=0.25, batch_first=True).double()
    rows = torch.randn(3, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = attention.eval()(rows, rows, rows)[0]
        with KeyedDropout(None) as mode:
            assert_close(attention(rows, rows, rows, need_weights=need_weights)[0], expected, **EXACT)
        assert mode.attends or need_weights
        _, weights = attention(rows, rows, rows, average_attn_weights=False)
        own = attention.in_proj_weight[16:] @ rows.mT + attention.in_proj_bias[16:, None]  # V
        values = own.view(3, 2, 4, 5).mT
        attention.train()
        (result, _), (mask,) = run_mode(attention, rows, rows, rows, need_weights=need_weights)
        mixed = (weights * mask.view(3, 2, 5, 5) / 0.75) @ values
        assert_close(result, attention.out_proj(mixed.transpose(1, 2).flatten(2)), **EXACT)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 3), function

    def forward(self, inputs):
        return self.function(self.layer(inputs), self)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda values, _: values + torch.randn_like(values), "randn_like"),
        (lambda values, _: values * torch.rand(3), "rand"),
        (lambda values, _: values.clone().uniform_(), "uniform_"),
        (lambda values, _: torch.bernoulli(values.sigmoid()), "bernoulli"),
        (lambda values, module: functional.rrelu(values, training=module.training), "rrelu"),
        (lambda values, _: functional.gumbel_softmax(values), "gumbel_softmax"),
        (lambda values, module: torch.dropout(values, 0.5, module.training), "dropout"),
    ],
)
def test_other_random_functions_are_refused_by_name(function, name):
    with pytest.raises(InputError, match=f"forward calls {name}, which draws .* only dropout may be random"):
        probe(Network(Calls(function)), torch.randn(2, 4), 3)


def test_dropout_that_ignores_the_mode_is_refused():
    with pytest.raises(InputError, match=r"Calls drops in evaluation mode too: .* training=self\.training"):
        probe(Network(Calls(lambda values, _: functional.dropout(values))), torch.randn(2, 4), 3)
    with pytest.raises(InputError, match=r"dropout has p = 1.5: it must be between 0 and 1"):
        probe(Network(Calls(lambda values, _: functional.dropout(values, 1.5))), torch.randn(2, 4), 3)


def test_a_mask_without_rows_is_the_same_for_all():
    module = Calls(lambda values, module: values * functional.dropout(torch.ones(3), 0.5, module.training))
    network = Network(module)
    assert network.dry_run(torch.Size([4]), torch.float32).dropout == (DropoutCall(None, 0),)
    weights = split(network.initial()[0], network.weights)
    outputs, _ = network.run(weights, torch.zeros(0), torch.ones(7, 4), torch.Size(), True, key(3))
    assert_close(outputs, outputs[:1].expand(7, 3))


def test_masks_have_rows_on_their_own_axis():
    calls = (DropoutCall(1, 8), DropoutCall(0, 8))
    few, many = (keyed(key(3), calls)(torch.Size([4, rows, 2]), 0.5, torch.device("cpu")) for rows in (3, 6))
    assert torch.equal(few, many[:, :3])
    assert not torch.equal(few, many[:, 3:])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("same", [(0, 0, 0), (0, 1, 1), (0, 1, 2)])
def test_queries_keys_and_values_are_torchs_for_every_client(same, bias):
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(6, 2, bias=bias, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, inputs):
            given = [inputs, 0.5 * inputs, -0.7 * inputs]
            return self.head(self.inner(*(given[number] for number in same))[0].mean(1))

    torch.manual_seed(0)
    network = Network(Attending().double())
    rows, labels = torch.randn(3, 4, 5, 6, dtype=torch.float64), torch.arange(12).view(3, 4) % 3
    task = Task(network, rows, labels, torch.full((3,), 4), key(torch.arange(3)), 0, min_rows=4)
    weights = network.initial()[0] + 0.1 * torch.randn(3, network.d, dtype=torch.float64)
    grads = task.gradient(weights, task.everything())
    for client in range(3):
        module = network.build(weights[client], torch.zeros(0)).train()
        functional.cross_entropy(module(rows[client]), labels[client]).backward()
        own = torch.cat([part.grad.flatten() for part in module.parameters() if part.grad is not None])
        assert_close(grads[client], own, **EXACT)


def test_a_stack_with_attention_copies_no_weight_for_every_position():
    network = Network(nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), nn.Flatten()))
    weights = split(network.initial()[0].expand(3, -1), network.weights)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        network.run(weights, torch.zeros(3, 0), torch.randn(3, 4, 5, 8), torch.Size([3]), train=True)
    products = [event.input_shapes for event in profiled.events() if event.name == "aten::bmm"]
    assert [[3, 20, 8], [3, 8, 24]] in products, "rows and positions of a client are one axis"

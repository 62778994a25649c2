"""A stack of clients' problems: mini-batches, gradients, scores."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from sfedhp.core.factored import Factored, Layer, dense
from sfedhp.core.keys import ROLES, choose, key
from sfedhp.core.types import Clock
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from tests.support.losses import half_squared_error

LEAD, ROWS, CLASSES = (2, 3), 7, 3
SIZES = torch.tensor([[7, 3, 5], [2, 0, 7]])
CLOCK = Clock(2, 1)


def build(*layers):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(nn.Sequential(nn.Flatten(), *(kind(*sizes) for kind, *sizes in layers)).double())


PERCEPTRON = build((nn.Linear, 6, 5), (nn.ReLU,), (nn.Linear, 5, 4), (nn.ReLU,), (nn.Linear, 4, 3))
NORMALIZED = build((nn.Linear, 6, 5), (nn.BatchNorm1d, 5), (nn.Tanh,), (nn.Linear, 5, 3))


def task(network=PERCEPTRON, batch_size=4, **options):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(*LEAD, ROWS, 2, 3, dtype=torch.float64, generator=generator)
    labels = torch.randint(CLASSES, (*LEAD, ROWS), generator=generator)
    stream = key(5, torch.arange(6).reshape(LEAD))
    return Task(network, inputs, labels, SIZES, stream, batch_size, **options)


def models(network=PERCEPTRON, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*LEAD, network.d, dtype=torch.float64, generator=generator)


def by_module(network, model, statistics, batch, loss):
    """A client's gradient with an ordinary module and ordinary autograd."""
    module = network.build(model, statistics).train()
    outputs = module(batch.inputs[batch.real])
    loss(outputs, batch.labels[batch.real]).backward()
    return torch.cat([value.grad.flatten() for value in module.parameters()])


def only(batch, place):
    return batch.map(lambda part: part[place])


def test_a_mini_batch_is_distinct_rows_of_the_client():
    whole = task()
    batch = whole.batch(CLOCK, 3)
    assert batch.inputs.shape == (*LEAD, 4, 2, 3)
    assert torch.equal(batch.real.sum(-1), SIZES.clamp_max(4))
    for place in ((0, 0), (0, 1), (1, 2)):
        mine = only(batch, place)
        own = whole.inputs[place][: SIZES[place]]
        found = [int((own == row).all(-1).all(-1).nonzero()) for row in mine.inputs[mine.real]]
        assert len(set(found)) == len(found)
        assert torch.equal(whole.labels[place][found], mine.labels[mine.real])


def test_draws_are_those_of_the_keys():
    whole = task()
    rows, real = choose(key(whole.stream, ROLES["adapt"], 2, 1, 3), SIZES, ROWS, 2)
    batch = whole.batch(CLOCK, 3, "adapt", 2)
    for place in ((0, 2), (1, 2)):
        assert torch.equal(batch.inputs[place], whole.inputs[place][rows[place]])
        assert torch.equal(batch.labels[place], whole.labels[place][rows[place]])
    assert torch.equal(batch.real, real)


def test_draws_change_with_every_part_of_the_key():
    whole = task()
    drawn = [
        whole.batch(Clock(cloud, edge), step, role).labels.flatten().tolist()
        + whole.batch(Clock(cloud, edge), step, role).inputs.flatten().tolist()
        for cloud, edge, step, role in [
            (0, 0, 0, "batch"),
            (1, 0, 0, "batch"),
            (0, 1, 0, "batch"),
            (0, 0, 1, "batch"),
            (0, 0, 0, "adapt"),
        ]
    ]
    assert all(first != second for turn, first in enumerate(drawn) for second in drawn[:turn])


def test_a_slice_a_choice_and_a_repetition_draw_as_the_whole_does():
    whole, batch = task(), task().batch(CLOCK)
    narrow = whole.map(lambda tensor: tensor.narrow(1, 1, 2))
    assert not narrow.inputs.is_contiguous()
    assert torch.equal(narrow.batch(CLOCK).inputs, batch.inputs[:, 1:])
    alone = whole.map(lambda tensor: tensor[0, 2])
    assert torch.equal(alone.batch(CLOCK).inputs, batch.inputs[0, 2])
    repeated = whole.map(lambda tensor: tensor[:1].expand(2, *tensor.shape[1:]))
    assert torch.equal(repeated.batch(CLOCK).inputs[1], batch.inputs[0])
    # Clients that do not begin a whole number of rows apart are gathered.
    apart = torch.zeros(2 * 3 * 43, dtype=torch.float64).as_strided((2, 3, 7, 2, 3), (129, 43, 6, 3, 1))
    odd = replace(whole, inputs=apart.copy_(whole.inputs))
    assert torch.equal(odd.batch(CLOCK).inputs, batch.inputs)


def test_a_batch_size_of_zero_is_the_whole_data():
    batch = task(batch_size=0).batch(CLOCK)
    assert torch.equal(batch.inputs, task().inputs)
    assert torch.equal(batch.real.sum(-1), SIZES)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("network", [PERCEPTRON, NORMALIZED])
def test_a_gradient_is_that_of_each_client_alone(network, weight_decay, plain):
    running_stats = torch.rand(*LEAD, network.s, dtype=torch.float64)
    stack = task(network, force_autograd=plain, weight_decay=weight_decay, statistics=running_stats)
    batch = stack.batch(CLOCK)
    given = models(network)
    grads = stack.gradient(given, batch)
    for place in ((0, 0), (0, 1), (0, 2), (1, 2)):
        own = by_module(
            network, given[place], running_stats[place], only(batch, place), functional.cross_entropy
        )
        assert_close(grads[place], own + weight_decay * given[place])
    assert_close(grads[1, 1], weight_decay * given[1, 1])  # a client without rows


def test_statistics_move_by_the_real_rows_and_are_not_read():
    running_stats = torch.rand(*LEAD, NORMALIZED.s, dtype=torch.float64)
    stack = task(NORMALIZED, statistics=running_stats.clone())
    batch = stack.batch(CLOCK)
    grads = stack.gradient(models(NORMALIZED), batch)
    module = NORMALIZED.build(models(NORMALIZED)[0, 1], running_stats[0, 1]).train()
    module(batch.inputs[0, 1][:3])
    assert_close(stack.statistics[0, 1, :5], module[2].running_mean)
    assert torch.equal(stack.statistics[1, 1], running_stats[1, 1])
    other = task(NORMALIZED, statistics=torch.zeros_like(running_stats))
    assert torch.equal(other.gradient(models(NORMALIZED), batch), grads)


def test_clients_of_one_size_go_through_batch_norm_together():
    whole = task(NORMALIZED).map(lambda tensor: tensor[:, ::2])
    whole.sizes = torch.full((2, 2), 5)
    grads = replace(whole, min_rows=5).gradient(models(NORMALIZED)[:, ::2], whole.batch(CLOCK))
    assert_close(grads, whole.gradient(models(NORMALIZED)[:, ::2], whole.batch(CLOCK)))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("network", [PERCEPTRON, NORMALIZED])
def test_mini_batches_that_all_can_fill_have_no_padding(network, plain):
    options = {"batch_size": 3, "force_autograd": plain, "statistics": torch.zeros(*LEAD, network.s).double()}
    sizes = torch.tensor([[7, 3, 5], [4, 0, 7]])
    known, unknown = (replace(task(network, min_rows=rows, **options), sizes=sizes) for rows in (3, 0))
    assert not known.rows_may_pad(3)
    assert known.rows_may_pad(4)
    assert not known.may_pad
    assert replace(known, batch_size=4).may_pad
    assert replace(known, batch_size=0).may_pad
    assert not replace(known, batch_size=9, min_rows=ROWS).may_pad
    one, other = known.batch(CLOCK), unknown.batch(CLOCK)
    assert torch.equal(one.labels, other.labels)
    there = sizes > 0
    assert one.real[there].all()
    assert_close(known.gradient(models(network), one)[there], unknown.gradient(models(network), other)[there])
    assert_close(known.statistics[there], unknown.statistics[there])
    # All rows of clients that differ are padded still.
    everything = known.everything()
    grads = known.gradient(models(network), everything)
    assert_close(grads, unknown.gradient(models(network), everything))


def squared(scores, labels, real):
    each = (scores - functional.one_hot(labels, CLASSES)).square().sum(-1)
    return torch.where(real, each, 0.0).sum(-1)


def test_any_loss_can_be_differentiated_by_hand():
    batch = task().batch(CLOCK)
    by_hand = task().gradient(models(), batch, squared)
    assert_close(by_hand, task(force_autograd=True).gradient(models(), batch, squared))


@pytest.mark.parametrize("network", [PERCEPTRON, NORMALIZED])
def test_targets_may_be_vectors_and_the_loss_of_the_task_is_the_default(network):
    targets = torch.randn(*LEAD, ROWS, CLASSES, dtype=torch.float64)
    stack = replace(task(network), labels=targets, loss=half_squared_error)
    batch, given, running = stack.batch(CLOCK, 3), models(network), torch.zeros(network.s)
    grads = stack.gradient(given, batch)
    for place in ((0, 0), (0, 1), (1, 2)):
        own = by_module(
            network, given[place], running, only(batch, place), lambda *pair: functional.mse_loss(*pair) / 2
        )
        assert_close(grads[place], own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("plain", [False, True])
def test_one_model_for_all_is_that_model_for_each(plain):
    shared = models()[0, 0].expand(*LEAD, -1)
    edges = models()[:, :1].expand(*LEAD, -1)
    for stacked in (shared, edges):
        stack = task(force_autograd=plain)
        batch = stack.batch(CLOCK)
        assert_close(stack.gradient(stacked, batch), stack.gradient(stacked.clone(), batch))
        assert_close(stack.scores(stacked, stack.inputs), stack.scores(stacked.clone(), stack.inputs))


def test_padding_has_no_influence():
    batch = task().batch(CLOCK)
    spoiled = batch._replace(
        inputs=torch.where(batch.real[..., None, None], batch.inputs, 1e6),
        labels=torch.where(batch.real, batch.labels, 0),
    )
    assert torch.equal(task().gradient(models(), spoiled), task().gradient(models(), batch))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("anchors", [(2, 1), LEAD])
def test_factored_models_score_and_descend_as_the_built_ones(plain, rows, anchors):
    stack, generator = task(force_autograd=plain, weight_decay=0.1), torch.Generator().manual_seed(3)

    def some(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    layers = (
        Layer(some(*LEAD, 2, 6), some(*LEAD, 2, 5)),
        some(*LEAD, 24),
        Layer(some(*LEAD, 2, 4), some(*LEAD, 2, 3)),
    )
    model = Factored(some(*anchors, PERCEPTRON.d), layers)
    inputs, batch = stack.inputs[:, :, :rows], stack.batch(CLOCK)
    built = replace(stack, force_autograd=True)
    assert_close(stack.scores(model, inputs), built.scores(dense(model), inputs))
    assert_close(stack.gradient(model, batch), built.gradient(dense(model), batch))


def test_gradients_go_back_through_a_layer_that_is_a_change():
    stack, generator = task(), torch.Generator().manual_seed(3)
    layers = tuple(
        Layer(*(torch.randn(*LEAD, 1, size, dtype=torch.float64, generator=generator) for size in sizes))
        for sizes in ((6, 5), (5, 4), (4, 3))
    )
    model = Factored(models()[:, :1], layers)
    batch = stack.batch(CLOCK)
    assert_close(stack.gradient(model, batch), stack.gradient(dense(model), batch))


@pytest.mark.parametrize("network", [PERCEPTRON, NORMALIZED])
def test_scores_are_those_of_the_modules(network):
    running_stats = torch.rand(*LEAD, network.s, dtype=torch.float64)
    stack = task(network, statistics=running_stats)
    scores = stack.scores(models(network), stack.inputs)
    for place in ((0, 0), (1, 2)):
        module = network.build(models(network)[place], running_stats[place])
        assert_close(scores[place], module(stack.inputs[place]))
    one, same = models(network)[0, 0], running_stats[:1, :1].expand(*LEAD, -1)
    alone = replace(stack, statistics=same).scores(one.expand(*LEAD, -1), stack.inputs)
    assert_close(alone[1, 2], network.build(one, running_stats[0, 0])(stack.inputs[1, 2]))


def test_a_curvature_is_the_change_of_the_gradient():
    stack = task(weight_decay=0.2)
    model, along, batch = models(), models(seed=4), stack.batch(CLOCK)
    step = 1e-6
    change = stack.gradient(model + step * along, batch) - stack.gradient(model - step * along, batch)
    assert_close(stack.curvature(model, batch, along), change / (2 * step), rtol=1e-5, atol=1e-6)


def test_rows_that_the_network_does_not_flatten_are_left_to_it():
    network = Network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double())
    assert task(network).layers == ()
    assert task(network).map(lambda tensor: tensor[..., 0, :] if tensor.ndim == 5 else tensor).layers
    assert task().layers == PERCEPTRON.layers
    assert task(force_autograd=True).layers == ()


def test_a_task_moves_to_a_device_with_all_it_has():
    moved = task(NORMALIZED, statistics=torch.zeros(*LEAD, NORMALIZED.s)).to(torch.device("meta"))
    tensors = (moved.inputs, moved.labels, moved.sizes, moved.stream, moved.statistics)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert task().to(torch.device("meta")).statistics is None

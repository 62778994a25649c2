"""Power iteration finds the eigenvalues that a whole Hessian has."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfedhp.core.keys import ROLES, key
from sfedhp.core.types import Clock
from sfedhp.nn.losses import cross_entropy
from sfedhp.nn.network import Network
from sfedhp.nn.presets import MODELS
from sfedhp.nn.task import Task
from sfedhp.theory import curvature


def task_of(module, inputs, classes=3, batch=4, weight_decay=0.0):
    generator = torch.Generator().manual_seed(1)
    lead = inputs.shape[:2]
    labels = torch.randint(0, classes, inputs.shape[:3], generator=generator)
    ids = torch.arange(lead.numel()).view(lead)
    sizes = torch.full(lead, inputs.shape[2])
    stream = key(0, ROLES["client"], ids)
    network = Network(module.double())
    return Task(network, inputs, labels, sizes, stream, batch, weight_decay=weight_decay)


def rows(*shape, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def perceptron(size=5, hidden=4, classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def whole_hessian(task, model, batch, place):
    alone = task.map(lambda tensor: tensor[place])
    one = batch.map(lambda part: part[place])

    def loss(flat):
        weights = {
            name: part
            for (name, _), part in zip(
                task.network.weights.items(),
                flat.split([shape.numel() for shape in task.network.weights.values()]),
                strict=True,
            )
        }
        weights = {name: weights[name].view(shape) for name, shape in task.network.weights.items()}
        scores = torch.func.functional_call(task.network.module, weights, (one.inputs,))
        return cross_entropy(scores, one.labels, one.real) + task.weight_decay / 2 * flat.square().sum()

    assert alone.lead == ()
    return torch.autograd.functional.hessian(loss, model)


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_the_largest_eigenvalue_of_each_client(weight_decay):
    task = task_of(perceptron(), rows(2, 3, 6, 5), weight_decay=weight_decay)
    model, _ = task.network.initial()
    batch = task.batch(Clock(0))
    found = curvature.largest_eigenvalue(task, model, batch, steps=30)
    for place in [(0, 0), (1, 2)]:
        expected = torch.linalg.eigvalsh(whole_hessian(task, model, batch, place))[-1]
        assert float(found[place]) == pytest.approx(float(expected), rel=1e-4)


def test_few_steps_are_nearly_enough():
    task = task_of(perceptron(20, 30), rows(1, 4, 40, 20))
    model, _ = task.network.initial()
    batch = task.batch(Clock(0))
    few, many = (curvature.largest_eigenvalue(task, model, batch, steps) for steps in (curvature.STEPS, 40))
    assert torch.all(few <= many * (1 + 1e-9))
    assert torch.all(few > 0.9 * many)


def test_an_exhausted_space_is_no_trouble():
    """One row of two classes: the Hessian has few directions, and the products soon give nothing new."""
    task = task_of(nn.Linear(2, 2), rows(1, 1, 1, 2), classes=2, batch=0)
    model, _ = task.network.initial()
    found = curvature.largest_eigenvalue(task, model, task.everything(), steps=40)
    expected = torch.linalg.eigvalsh(whole_hessian(task, model, task.everything(), (0, 0)))[-1]
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_linear_scores_have_a_smoothness_that_holds_everywhere():
    task = task_of(nn.Linear(5, 3), rows(2, 2, 30, 5), batch=0, weight_decay=0.25)
    padded = task.inputs[1, 1].clone()
    task.sizes[1, 1] = 10
    task.inputs[1, 1, 10:] = 1e6  # padding is not data
    bound = curvature.linear_smoothness(task)
    inputs = torch.cat([task.inputs, task.inputs.new_ones(2, 2, 30, 1)], -1)
    real = [inputs[0, 0], inputs[0, 1], inputs[1, 0], inputs[1, 1, :10]]
    largest = max(float(torch.linalg.eigvalsh(each.mT @ each / len(each))[-1]) for each in real)
    assert bound == pytest.approx(largest / 2 + 0.25, rel=1e-6)
    task.inputs[1, 1], task.sizes[1, 1] = padded, 30
    found = curvature.measure(task, task.network.initial()[0])
    assert (found.convexity, found.exact) == (0.25, True)
    for seed in range(3):
        model = torch.randn(18, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        here = curvature.largest_eigenvalue(task, model, task.everything(), steps=20)
        assert torch.all(here <= found.smoothness)
        assert torch.all(here >= 0.25 - 1e-9)


@pytest.mark.parametrize("scale", [1.5, 0.5])
def test_centered_features_do_not_hide_behind_the_bias(scale):
    """The mean row is then the bias axis, an eigenvector of its own with the eigenvalue 1."""
    half = (8 * rows(1, 3, 20, 5, scale=scale)).round() / 8  # of which sums are exact
    task = task_of(nn.Linear(5, 3), torch.cat([half, -half], -2), batch=0)
    inputs = torch.cat([task.inputs, task.inputs.new_ones(1, 3, 40, 1)], -1)
    exact = torch.linalg.eigvalsh(inputs.mT @ inputs / 40)[..., -1]
    assert (float(exact.max()) > 1) is (scale > 1)
    assert curvature.linear_smoothness(task) == pytest.approx(float(exact.max()) / 2, rel=1e-4)


def test_what_a_network_shows_is_taken_at_its_weights():
    task = task_of(perceptron(), rows(2, 3, 6, 5))
    model, _ = task.network.initial()
    found = curvature.measure(task, model)
    assert (found.convexity, found.exact) == (0.0, False)
    assert found.smoothness > 0


def test_the_median_and_the_worst_tenth_of_the_clients():
    """Client 3's rows are ten times as long: the worst tenth sees it and the median does not."""
    inputs = rows(1, 8, 10, 5, scale=0.5)
    task = task_of(perceptron(), inputs)
    model, _ = task.network.initial()
    calm = curvature.batch_curvature(task, model)
    loud = curvature.batch_curvature(
        replace(task, inputs=inputs * torch.where(torch.arange(8) == 3, 10.0, 1.0).view(1, 8, 1, 1)), model
    )
    assert calm.worst < 3 * calm.median
    assert loud.worst > 10 * loud.median
    assert loud.median < 2 * calm.median
    each = torch.stack(
        [curvature.largest_eigenvalue(task, model, task.batch(Clock(0, turn))) for turn in range(20)]
    )
    assert calm.worst == pytest.approx(float(each.amax(0).max()))
    assert calm.median == pytest.approx(float(each.amax(0).flatten().quantile(0.5)))


def test_a_tenth_of_twenty_clients_are_two():
    task = task_of(perceptron(), rows(4, 5, 10, 5))
    model, _ = task.network.initial()
    turns = [curvature.largest_eigenvalue(task, model, task.batch(Clock(0, turn))) for turn in range(20)]
    clients = torch.stack(turns).amax(0).flatten().sort().values
    assert curvature.batch_curvature(task, model).worst == pytest.approx(float(clients[-2]))


def test_empty_seats_are_passed_over_and_large_federations_sampled():
    task = task_of(nn.Linear(2, 2), rows(5, 9, 4, 2), classes=2)
    task.sizes[0] = 0
    some = curvature._sampled(task, 20)
    assert some.lead == (20,)
    assert bool((some.sizes > 0).all())
    assert curvature._sampled(task, 100).lead == (36,)


@pytest.mark.parametrize(
    ("name", "expected"), [("vgg", True), ("vgg-gn", True), ("dnn-small", False), ("mlr", True)]
)
def test_one_layer_without_a_normalization_is_known_by_the_scores(name, expected):
    torch.manual_seed(0)
    task = task_of(MODELS[name]((3, 32, 32), 3), rows(1, 1, 8, 3, 32, 32), batch=8)
    assert curvature.is_bounded(task, task.network.initial()[0]) is expected


def test_a_normalized_network_shows_the_size_of_its_curvature_by_one_batch(monkeypatch):
    torch.manual_seed(0)
    task = task_of(MODELS["vgg"]((3, 32, 32), 3), rows(1, 1, 8, 3, 32, 32), batch=4)
    seen = []
    real = curvature.largest_eigenvalue

    def short(task, model, batch):
        seen.append((task, model, batch))
        return real(task, model, batch, steps=2)

    monkeypatch.setattr(curvature, "largest_eigenvalue", short)
    found = curvature.batch_curvature(task, task.network.initial()[0])
    assert found.bounded
    assert len(seen) == 1
    assert found.median == found.worst > 0

"""Features apart from the head, on every way to compute gradients, against autograd on the module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sfedhp.core.types import Clock
from sfedhp.nn.features import (
    features,
    in_head,
    linear_head,
    mean_features,
    mean_features_gradient,
    out_of_head,
    shifted,
    shifted_gradient,
)
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task

CLIENTS, ROWS = 3, 6
MODULES = {
    "linear layers": (nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)), 5),
    "a head alone": (nn.Linear(16, 3), 16),
    "autograd": (nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3)), 5),
    "batch norm": (
        nn.Sequential(
            nn.Unflatten(1, (1, 4)),
            nn.Conv2d(1, 2, 3),
            nn.BatchNorm2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, 3),
        ),
        8,
    ),
}


def task_of(name: str) -> tuple[Task, Tensor, nn.Module]:
    module, _ = MODULES[name]
    network = Network(module.double())
    generator = torch.Generator().manual_seed(0)
    shape = (16,) if name == "a head alone" else (4, 4)
    inputs = torch.randn(CLIENTS, ROWS, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (CLIENTS, ROWS), generator=generator)
    task = Task(network, inputs, labels, torch.full((CLIENTS,), ROWS), torch.arange(CLIENTS), 0, 0.1)
    _, statistics = network.initial()
    task.statistics = statistics.double().expand(CLIENTS, -1).clone()
    models = torch.randn(CLIENTS, network.d, generator=generator, dtype=torch.float64) / 2
    return task, models, network.module


@pytest.mark.parametrize("name", MODULES)
def test_features_and_their_gradients(name: str) -> None:
    task, models, _ = task_of(name)
    count, head = MODULES[name][1], linear_head(task.network)
    found = features(task, models, task.inputs)
    assert found.shape == (CLIENTS, ROWS, count)
    scores = found @ head.weight(models).mT + head.bias(models)
    torch.testing.assert_close(scores, task.scores(models, task.inputs))
    without = Task(**{**vars(task), "statistics": None}) if not task.network.s else task
    torch.testing.assert_close(features(without, models, task.inputs), found)

    shift = torch.linspace(-1, 1, CLIENTS * count, dtype=torch.float64).view(CLIENTS, count)
    moved = shifted(task, models, shift)
    expected = (found + shift.unsqueeze(-2)) @ head.weight(models).mT + head.bias(models)
    torch.testing.assert_close(task.scores(moved, task.inputs), expected)
    assert torch.equal(out_of_head(task, in_head(task, shift)), shift)

    batch, before = task.batch(Clock(0)), task.statistics
    means = mean_features(task, models, batch)
    assert task.statistics is before, "a probe leaves no trace"
    if name != "batch norm":  # which has other features in training
        torch.testing.assert_close(means, found.mean(-2))
    pull = mean_features_gradient(task, models, batch, shift)
    grad, shift_grad = shifted_gradient(task, models, shift, batch)
    step = 1e-6
    for index in (0, task.network.d // 2, task.network.d - 1):
        unit = torch.zeros_like(models)
        unit[:, index] = step
        more, less = (mean_features(task, models + sign * unit, batch) for sign in (1, -1))
        change = ((more - less) * shift).sum(-1) / (2 * step)
        torch.testing.assert_close(pull[:, index], change, rtol=1e-4, atol=1e-7)
        if index >= head.start:
            assert not change.any()
    # The loss with a shift, along z and along the model: that of the model with another bias.
    loss = torch.nn.functional.cross_entropy
    if name == "linear layers":
        leaf, own = models.clone().requires_grad_(), shift.clone().requires_grad_()
        hidden = torch.relu(task.inputs.flatten(2) @ leaf[:, :80].view(-1, 5, 16).mT + leaf[:, None, 80:85])
        out = (hidden + own.unsqueeze(-2)) @ leaf[:, 85:100].view(-1, 3, 5).mT + leaf[:, None, 100:]
        total = sum(loss(each, labels) for each, labels in zip(out, task.labels, strict=True))
        grads = torch.autograd.grad(total, (leaf, own))  # type: ignore[arg-type]
        torch.testing.assert_close(grad, grads[0] + 0.1 * models)
        torch.testing.assert_close(shift_grad, grads[1])

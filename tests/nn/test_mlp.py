"""Products, grads and gradients are the same whichever way matrices lie in memory."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from sfedhp.core.factored import Layer
from sfedhp.core.types import Batch
from sfedhp.nn.losses import CrossEntropyGrad
from sfedhp.nn.matmul import baddbmm, baddbmm_, prefers_column_major
from sfedhp.nn.mlp import LinearSlice, StackedModels, gradient

FEW, MANY = 3, 20  # classes: fewer and more than a register holds
CLIENTS, ROWS = 4, 6


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_few_columns_come_first_on_a_cpu_alone():
    assert prefers_column_major(FEW, torch.device("cpu"))
    assert not prefers_column_major(MANY, torch.device("cpu"))
    assert not prefers_column_major(FEW, torch.device("cuda"))


@pytest.mark.parametrize("columns", [FEW, MANY])
def test_products_are_added_whichever_way_they_lie(columns):
    base, left, right = random(CLIENTS, 1, columns), random(CLIENTS, ROWS, 5), random(CLIENTS, 5, columns)
    whole = baddbmm(base, left, right)
    torch.testing.assert_close(whole, base + left @ right)
    assert whole.mT.is_contiguous() == (columns == FEW)
    twice = baddbmm_(whole, left, right)
    torch.testing.assert_close(twice, base + 2 * left @ right)
    assert twice.data_ptr() == whole.data_ptr()


@pytest.mark.parametrize("outputs", [FEW, MANY])
@pytest.mark.parametrize("groups", [1, 2, CLIENTS])
def test_clients_that_share_a_model_get_their_own_outputs(outputs, groups):
    layer = LinearSlice(0, 5, outputs)
    models, rows = random(groups, layer.end), random(CLIENTS, ROWS, 5, seed=1)
    own = models.repeat_interleave(CLIENTS // groups, 0)
    torch.testing.assert_close(
        layer.forward(models, rows), rows @ layer.weight(own).mT + layer.bias(own), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("classes", [FEW, MANY])
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_of_the_loss_equal_autograds(classes, padded):
    labels = torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS) % classes
    real = torch.ones_like(labels, dtype=torch.bool)
    if padded:
        real[1, 2:] = False
    scores = random(CLIENTS, ROWS, classes).requires_grad_()
    each = cross_entropy(scores.mT, labels, reduction="none")
    (torch.where(real, each, 0.0).sum(-1) / real.sum(-1)).sum().backward()
    grad = CrossEntropyGrad(Batch(scores, labels, real), scores.detach(), classes, 2.0, padded)
    torch.testing.assert_close(grad(scores.detach()), 2 * scores.grad)


@pytest.mark.parametrize("classes", [FEW, MANY])
def test_the_gradient_of_a_change_never_built_is_that_of_the_model(classes):
    layers = (LinearSlice(0, 5, 30), LinearSlice(180, 30, classes))
    rows, anchor = random(CLIENTS, ROWS, 5), random(1, layers[-1].end, seed=1)
    top = Layer(random(CLIENTS, 2, 30, seed=2), random(CLIENTS, 2, classes, seed=3))
    built = anchor.expand(CLIENTS, -1).clone()
    layers[1].weight(built).add_(top.coefficients.mT @ top.inputs)
    layers[1].bias(built).add_(top.coefficients.sum(1, keepdim=True))
    near = StackedModels(anchor, (layers[0].part(built), top))
    grads = [gradient(layers, models, rows, torch.tanh) for models in (near, StackedModels(built))]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)

"""Linear layers of stacked clients: outputs and gradients, for models built or held as changes."""

import pytest
import torch

from sfedhp.core.factored import Layer
from sfedhp.nn.mlp import LinearSlice, StackedModels, gradient
from tests.support.tensors import normal

FEW, MANY = 3, 20  # classes: fewer and more than a register holds
CLIENTS, ROWS = 4, 6


@pytest.mark.parametrize("outputs", [FEW, MANY])
@pytest.mark.parametrize("groups", [1, 2, CLIENTS])
def test_clients_that_share_a_model_get_their_own_outputs(outputs, groups):
    layer = LinearSlice(0, 5, outputs)
    models, rows = normal(groups, layer.end), normal(CLIENTS, ROWS, 5, seed=1)
    own = models.repeat_interleave(CLIENTS // groups, 0)
    torch.testing.assert_close(
        layer.forward(models, rows), rows @ layer.weight(own).mT + layer.bias(own), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("classes", [FEW, MANY])
def test_the_gradient_of_a_change_never_built_is_that_of_the_model(classes):
    layers = (LinearSlice(0, 5, 30), LinearSlice(180, 30, classes))
    rows, anchor = normal(CLIENTS, ROWS, 5), normal(1, layers[-1].end, seed=1)
    top = Layer(normal(CLIENTS, 2, 30, seed=2), normal(CLIENTS, 2, classes, seed=3))
    built = anchor.expand(CLIENTS, -1).clone()
    layers[1].weight(built).add_(top.coefficients.mT @ top.inputs)
    layers[1].bias(built).add_(top.coefficients.sum(1, keepdim=True))
    near = StackedModels(anchor, (layers[0].part(built), top))
    grads = [gradient(layers, models, rows, torch.tanh) for models in (near, StackedModels(built))]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)

"""The cross-entropy and its gradient."""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from sfedhp.core.types import Batch
from sfedhp.nn.losses import CrossEntropyGrad, cross_entropy

FEW, MANY = 3, 20  # classes: fewer and more than a register holds
CLIENTS, ROWS = 4, 6


def test_the_loss_is_the_mean_over_the_real_rows():
    scores = torch.randn(2, 3, 4)
    labels, real = torch.tensor([[0, 1, 2], [3, 0, 0]]), torch.tensor([[True, True, False], [False] * 3])
    own = functional.cross_entropy(scores[0, :2], labels[0, :2])
    assert_close(cross_entropy(scores, labels, real), torch.stack([own, torch.tensor(0.0)]))


@pytest.mark.parametrize("classes", [FEW, MANY])
@pytest.mark.parametrize("padded", [False, True])
def test_gradients_of_the_loss_equal_autograds(classes, padded):
    labels = torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS) % classes
    real = torch.ones_like(labels, dtype=torch.bool)
    if padded:
        real[1, 2:] = False
    scores = torch.randn(
        CLIENTS, ROWS, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    each = functional.cross_entropy(scores.mT, labels, reduction="none")
    (torch.where(real, each, 0.0).sum(-1) / real.sum(-1)).sum().backward()
    grad = CrossEntropyGrad(Batch(scores, labels, real), scores.detach(), classes, 2.0, padded)
    assert scores.grad is not None
    assert_close(grad(scores.detach()), 2 * scores.grad)

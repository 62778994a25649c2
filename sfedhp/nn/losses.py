"""Losses of rows and batches, and their gradients with respect to the scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import log_softmax

from sfedhp.core.types import Batch
from sfedhp.nn.matmul import prefers_column_major

# Scores (..., rows, outputs) and labels (..., rows, *target) to the loss of each row, (..., rows).
RowLoss = Callable[[Tensor, Tensor], Tensor]
# Scores (..., rows, outputs), labels (..., rows, *target) and which rows are real (..., rows) to one loss a
# client, (...).
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# Scores (clients, rows, outputs) to the gradients of the clients' losses with respect to them.
LossGrad = Callable[[Tensor], Tensor]


def cross_entropy(scores: Tensor, labels: Tensor, real: Tensor) -> Tensor:
    """The mean cross-entropy over the real rows, (...); 0 for a client without any. See `Loss`."""
    return _mean(cross_entropy_of_rows(scores, labels), real)


def of_real_rows(loss: Loss, scores: Tensor, labels: Tensor) -> Tensor:
    """The loss () of a client's rows (rows, ...), all of which are real; torch's function is the fastest."""
    if loss is cross_entropy:
        return functional.cross_entropy(scores, labels)
    return loss(scores, labels, scores.new_ones(len(scores), dtype=torch.bool))


def cross_entropy_of_rows(scores: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each row, (..., rows). See `RowLoss`."""
    return -log_softmax(scores, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class MeanLoss:
    """The mean of the losses of the real rows, (...); 0 for a client without any. See `Loss`."""

    each: RowLoss

    def __call__(self, scores: Tensor, labels: Tensor, real: Tensor) -> Tensor:
        """The loss of each client."""
        return _mean(self.each(scores, labels), real)


def mean_of(each: RowLoss) -> Loss:
    """The loss of a batch, given that of a row."""
    return cross_entropy if each is cross_entropy_of_rows else MeanLoss(each)


def _mean(each: Tensor, real: Tensor) -> Tensor:
    return torch.where(real, each, 0.0).sum(-1) / real.sum(-1).clamp_min(1)


def loss_grad_of(
    loss: Loss, batch: Batch, rows: Tensor, outputs: int, factor: float | Tensor = 1.0, may_pad: bool = True
) -> LossGrad:
    """The gradient of a loss on a batch with respect to the scores, times a factor.

    Args:
        loss: ℓ; the cross-entropy has a gradient written by hand.
        batch: the batch of the whole stack.
        rows: its inputs as (clients, rows, features).
        outputs: scores of a row.
        factor: of all gradients, or one for each client, (clients, 1, 1).
        may_pad: whether some rows may be padding.
    """
    if loss is cross_entropy:
        return CrossEntropyGrad(batch, rows, outputs, factor, may_pad)
    return loss_grad_by_autograd(loss, batch, factor)


def loss_grad_by_autograd(loss: Loss, batch: Batch, factor: float | Tensor = 1.0) -> LossGrad:
    """The gradient of any loss on a batch with respect to the scores, times a factor."""

    def loss_grad(scores: Tensor) -> Tensor:
        leaf = scores.detach().view(*batch.real.shape, -1).requires_grad_()
        with torch.enable_grad():
            total = loss(leaf, batch.labels, batch.real).sum()
        grad = torch.autograd.grad(total, leaf)[0].reshape(scores.shape)
        return grad if isinstance(factor, float) and factor == 1 else grad * factor

    return loss_grad


class CrossEntropyGrad:
    """Gradient of a batch's mean cross-entropy with respect to the scores, times a factor.

    For a row with scores z and one-hot label y it is factor / n · (softmax(z) − y), n being the number of
    real rows of the client; for padding rows it is 0.
    """

    def __init__(
        self,
        batch: Batch,
        rows: Tensor,
        classes: int,
        factor: float | Tensor = 1.0,
        may_pad: bool = True,
    ):
        """Prepare everything that does not depend on the scores.

        Args:
            batch: the batch of the whole stack.
            rows: its inputs as (clients, rows, features).
            classes: number of classes.
            factor: of all gradients, or one for each client, (clients, 1, 1).
            may_pad: whether some rows may be padding.
        """
        labels = batch.labels.reshape(*rows.shape[:2], 1)
        if prefers_column_major(classes, rows.device):
            target = rows.new_zeros(rows.shape[0], classes, rows.shape[1]).mT
        else:
            target = rows.new_zeros(*rows.shape[:2], classes)
        self.weights: float | Tensor
        if may_pad:
            real = batch.real.reshape(rows.shape[:2])
            share = real.to(rows.dtype) / real.sum(-1, keepdim=True).clamp_min(1)
            self.weights = share.unsqueeze(-1) * factor
        else:
            self.weights = factor / rows.shape[1]
        if isinstance(self.weights, Tensor):
            self.target = target.scatter_(-1, labels, -self.weights.expand(labels.shape))
        else:
            self.target = target.scatter_(-1, labels, -self.weights)

    def __call__(self, scores: Tensor) -> Tensor:
        """Gradients (clients, rows, classes) for scores of the same shape."""
        if isinstance(self.weights, Tensor):
            return torch.addcmul(self.target, _softmax(scores), self.weights)
        return torch.add(self.target, _softmax(scores), alpha=self.weights)


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis; on a CPU by columns, several times faster with few classes."""
    if scores.device.type != "cpu":
        return torch.softmax(scores, -1)
    return torch.softmax(scores.mT, -2).mT

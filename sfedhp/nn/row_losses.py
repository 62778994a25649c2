"""The losses of `[loss]`, each as the loss of one row; training uses their mean over a mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from sfedhp.core.errors import InputError
from sfedhp.core.imports import import_named, user_code, what_to_name
from sfedhp.core.options import Bounds, Help
from sfedhp.nn.losses import RowLoss, cross_entropy_of_rows
from sfedhp.nn.problems import PROBLEMS, Problem


@dataclass(frozen=True)
class LossOptions:
    """The [loss] section: what training minimizes."""

    name: Annotated[
        str,
        Help(
            "cross_entropy, bce, mse, mae, huber, or package.module:function; auto: cross_entropy for "
            "classes, bce for several labels, mse for numbers"
        ),
    ] = "auto"
    label_smoothing: Annotated[
        float, Bounds(0, 0.99), Help("ε of cross_entropy: the share of a label spread over all classes")
    ] = 0.0
    class_weights: Annotated[
        Literal["none", "balanced"],
        Help("balanced: cross_entropy weighs a class less, the more training rows it has over all clients"),
    ] = "none"
    huber_delta: Annotated[
        float,
        Bounds(0, exclusive=True),
        Help("δ of huber, above which an error counts linearly; in standard deviations of the target"),
    ] = 1.0


def row_loss_of(options: LossOptions, problem: Problem, class_rows: Sequence[int]) -> RowLoss:
    """The loss of a row that the options name.

    Args:
        options: the [loss] section.
        problem: what is predicted.
        class_rows: training rows of each class over all clients; used for balanced weights alone.

    Raises:
        InputError: the loss is not known, cannot be imported, or does not fit the problem.
    """
    name = problem.losses[0] if options.name == "auto" else options.name
    own = ":" in name
    if not own and name not in problem.losses:
        known = {loss for each in PROBLEMS.values() for loss in each.losses}
        use = f"use {', '.join(problem.losses)} or package.module:function."
        if name in known:
            raise InputError(f"loss.name = {name!r} does not fit problem = {problem.name}: {use}")
        raise InputError(f"loss.name = {name!r} is not known: {what_to_name(name, problem.losses, use)}")
    plain = LossOptions()
    for key, loss in (
        ("label_smoothing", "cross_entropy"),
        ("class_weights", "cross_entropy"),
        ("huber_delta", "huber"),
    ):
        if name != loss and getattr(options, key) != getattr(plain, key):
            raise InputError(f"loss.{key} is for loss.name = {loss}, and the loss is {name}: leave it out.")
    if own:
        return OwnLoss(name).checked()
    if name == "huber":
        return HuberLoss(options.huber_delta)
    weights = _balanced(class_rows) if options.class_weights == "balanced" else ()
    if name == "cross_entropy" and (weights or options.label_smoothing):
        return WeightedCrossEntropy(options.label_smoothing, weights)
    return _LOSSES[name]


def binary_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over the labels of the cross-entropy of σ(score), each label being 0 or 1."""
    target = labels.to(scores.dtype)
    return functional.binary_cross_entropy_with_logits(scores, target, reduction="none").mean(-1)


def squared_error(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over the targets of the squared error."""
    return (scores - labels).square().mean(-1)


def absolute_error(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over the targets of the absolute error."""
    return (scores - labels).abs().mean(-1)


_LOSSES: Final[dict[str, RowLoss]] = {
    "cross_entropy": cross_entropy_of_rows,
    "bce": binary_cross_entropy,
    "mse": squared_error,
    "mae": absolute_error,
}


@dataclass(frozen=True)
class HuberLoss:
    """The mean over the targets of e²/2 for errors |e| ≤ δ, and δ (|e| − δ/2) for larger ones."""

    delta: float

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        return functional.huber_loss(scores, labels, reduction="none", delta=self.delta).mean(-1)


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """(1 − ε) w_y nll_y + ε/C Σ_c w_c nll_c, as `torch.nn.CrossEntropyLoss` with reduction="none".

    Differs from torch in the mean over a batch: it divides by the number of rows, not by the sum of their
    weights. Otherwise the weights would cancel for a client that holds rows of one class only.
    """

    smoothing: float
    weights: tuple[float, ...]  # of each class; () for equal ones

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        likelihoods = torch.log_softmax(scores, -1)
        if self.weights:
            likelihoods = likelihoods * _tensor(self.weights, scores.dtype, scores.device)
        own = -likelihoods.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        if not self.smoothing:
            return own
        return (1 - self.smoothing) * own - self.smoothing * likelihoods.mean(-1)


@dataclass(frozen=True)
class OwnLoss:
    """A user's function of scores (rows, outputs) and targets (rows, …) that gives a loss for each row."""

    name: str  # package.module:function

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        lead = scores.shape[:-1]
        rows = scores.reshape(-1, scores.shape[-1]), labels.reshape(-1, *labels.shape[len(lead) :])
        losses: Tensor = _imported(self.name)(*rows)
        return losses.view(lead)

    def checked(self) -> OwnLoss:
        """The loss itself, if it can be imported.

        Raises:
            InputError: it cannot.
        """
        _imported(self.name)
        return self


def probe_loss(loss: RowLoss, scores: Tensor, labels: Tensor) -> None:
    """Check a user's loss on a few rows.

    Args:
        loss: of any kind; only a user's own is looked at.
        scores: (rows, outputs) of at least two rows.
        labels: (rows, *target).

    Raises:
        InputError: it fails, returns another shape or type, has no gradient, or mixes rows.
    """
    if not isinstance(loss, OwnLoss):
        return
    what, leaf = f"loss.name = {loss.name!r}", scores.detach().clone().requires_grad_()
    shapes = f"scores of shape {tuple(scores.shape)} and targets of shape {tuple(labels.shape)}"
    with torch.enable_grad(), user_code(f"{what} fails for {shapes}", "correct the function"):
        found: Any = _imported(loss.name)(leaf, labels)
    rows = len(scores)
    if not isinstance(found, Tensor) or found.shape != (rows,):
        shape = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InputError(
            f"{what} returns {shape} for {rows} rows: it must return one loss for each row, shape ({rows},), "
            f'as torch\'s losses do with reduction="none" and a mean over the outputs.'
        )
    if not found.requires_grad:
        raise InputError(f"{what} has no gradient with respect to the scores: compute it with torch.")
    alone = torch.cat(
        [_imported(loss.name)(scores[row : row + 1], labels[row : row + 1]) for row in range(rows)]
    )
    if not torch.allclose(found, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            f"{what} gives a row another loss when it is alone in a batch: the loss of a row must not depend "
            f"on the other rows."
        )


def _balanced(class_rows: Sequence[int]) -> tuple[float, ...]:
    """n/(C nₖ) for a class with nₖ of n rows, as scikit-learn's "balanced"; 0 for a class without rows."""
    total, present = sum(class_rows), sum(rows > 0 for rows in class_rows)
    return tuple(total / (present * rows) if rows else 0.0 for rows in class_rows)


@cache
def _tensor(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(weights, dtype=dtype, device=device)


@cache
def _imported(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    found: Callable[[Tensor, Tensor], Tensor] = import_named("loss.name", name)
    if not callable(found):
        raise InputError(f"loss.name = {name!r} is not a function of scores and targets.")
    return found

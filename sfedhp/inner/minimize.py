"""The inner problem θ ≈ argmin ℓ(θ; D) + γ φ_ρ(θ) + λ/2 ‖θ − anchor‖², one primitive for every method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.scalars import PerRun, Scalar, absent
from sfedhp.core.types import Batch, Clock
from sfedhp.core.vectors import smooth_l1_grad, soft_threshold, toward
from sfedhp.inner.anchor_mix import Factor, StepCoefficients
from sfedhp.inner.descent import Descent
from sfedhp.inner.sgd import sgd_steps
from sfedhp.inner.stacked import StackedProblem, gradient_descent
from sfedhp.nn.mlp import distinct_models
from sfedhp.nn.task import Task

__all__ = ["Descent", "Path", "minimize", "path"]

Path = Literal["sample-space", "stacked", "plain"]


def minimize(
    task: Task,
    clock: Clock,
    anchor: Tensor,
    descent: Descent,
    *,
    start: Tensor | Factored | None = None,
    first_batch: int = 0,
    factored: bool = False,
    role: str = "batch",
) -> Tensor | Factored:
    """Take the steps of a descent on ℓ(θ; D) + γ φ_ρ(θ) + λ/2 ‖θ − anchor‖².

    Args:
        task: a client's problem, or a stack of them.
        clock: when; with `first_batch` it decides the mini-batches.
        anchor: (..., d), the center of the pull.
        descent: which steps to take.
        start: θ before the first step; None: the anchor.
        first_batch: the number of the first mini-batch, or epoch; each further one has the next number.
        factored: whether the caller can work with a `Factored`; without it the result is a tensor.
        role: what the mini-batches are drawn for, as in `Task.batch`.

    Returns:
        θ (..., d) after the last step. All paths (see `path`) take the same steps, up to rounding.
    """
    drawn: tuple[int, Batch] | None = None

    def batch(number: int) -> Batch:
        nonlocal drawn
        if drawn is None or drawn[0] != number:  # all steps on one mini-batch draw it once
            drawn = number, task.batch(clock, first_batch + number, role)
        return drawn[1]

    if descent.sgd:
        begin = anchor if start is None else dense(start)
        return sgd_steps(task, clock, batch, anchor, begin, descent, first_batch)
    if path(task, descent) == "plain" or not descent.steps:
        return _plain_steps(task, batch, anchor, anchor if start is None else dense(start), descent)
    return gradient_descent(_stacked_problem(task, batch, anchor, start, descent, factored))


def path(task: Task, descent: Descent) -> Path:
    """How `minimize` will compute: the fastest exact way that the network and the descent allow.

    Returns:
        "sample-space": models are not built but held as changes of their anchors; "stacked": they are built
        layer by layer and moved in place; "plain": flat vectors and the task's gradient, for any network.
    """
    exact_l1 = descent.sparse and descent.penalty == "l1"
    if task.privacy is not None:
        return "plain"  # every gradient is clipped row by row, and gets noise of its own
    if not task.layers or descent.solver != "gradient" or descent.tolerance or exact_l1 or descent.sgd:
        return "plain"
    if descent.restricted:
        return "plain"
    looks_ahead = descent.lookahead is not None
    if looks_ahead and task.weight_decay:
        return "plain"  # the lookahead step includes the decay, which the stacked layers leave out
    changing = descent.new_batch_each_step or descent.sparse or looks_ahead
    return "stacked" if changing else "sample-space"


def _plain_steps(
    task: Task, batch: Callable[[int], Batch], anchor: Tensor, start: Tensor, descent: Descent
) -> Tensor:
    """The steps on flat vectors, one after the other."""
    point = previous = start
    active: Tensor | bool = True  # which clients have not stopped
    for step in range(descent.steps):
        here = _extrapolated(point, previous, step) if descent.solver == "nesterov" else point
        moved = _moved(here, descent.of(_loss_gradient(task, batch, here, step, descent)), anchor, descent)
        if descent.part is not None:
            moved = torch.where(descent.part, moved, here)
        if descent.tolerance:
            # ∇H(θ), or the gradient mapping where the exact ℓ1 has no gradient
            gradient = (here - moved) / descent.rate
            active = (gradient.square().sum(-1, keepdim=True) > descent.tolerance) & active
            moved = torch.where(active, moved, point)
        previous, point = point, moved
    return point


def _extrapolated(point: Tensor, previous: Tensor, step: int) -> Tensor:
    """Nesterov's y = θ_k + k/(k+3) (θ_k − θ_{k−1})."""
    return point + step / (step + 3) * (point - previous)


def _loss_gradient(
    task: Task, batch: Callable[[int], Batch], point: Tensor, step: int, descent: Descent
) -> Tensor:
    """∇ℓ(θ; D), or ∇ℓ(θ − α ∇ℓ(θ; D); D′) with a lookahead."""
    if descent.lookahead is None:
        rows = batch(step) if descent.new_batch_each_step else batch(0).at_step(step)
        return task.gradient(point, rows)
    ahead = point - descent.lookahead * task.gradient(point, batch(2 * step))
    return task.gradient(ahead, batch(2 * step + 1))


def _moved(point: Tensor, gradient: Tensor, anchor: Tensor, descent: Descent) -> Tensor:
    """θ − η (∇ℓ + γ ∇φ_ρ(θ) + λ (θ − anchor)); with the exact ℓ1 its proximal step instead of ∇φ_ρ."""
    rate, proximity, sparsity = descent.rate, descent.proximity, descent.sparsity
    pulled = point if absent(proximity) else toward(point, anchor, rate * proximity)
    if not descent.sparse:
        change = gradient.mul_(cast(float, rate))  # or a PerRun; the gradient is not read again
        return torch.sub(pulled, change, out=change)
    if descent.penalty == "l1":
        return soft_threshold(pulled - rate * gradient, rate * sparsity)
    return pulled - rate * (gradient + sparsity * smooth_l1_grad(point, descent.smoothing))


def _stacked_problem(
    task: Task,
    batch: Callable[[int], Batch],
    anchor: Tensor,
    start: Tensor | Factored | None,
    descent: Descent,
    factored: bool,
) -> StackedProblem:
    """The same steps for stacked linear layers; what differs between clients is (clients, 1, 1)."""

    def factor(scalar: Scalar | Tensor) -> Factor:
        if isinstance(scalar, PerRun):
            scalar = scalar.like(anchor.new_empty(task.lead)).unsqueeze(-1)
        if isinstance(scalar, Tensor):
            scalar = scalar.to(anchor.dtype).expand(*task.lead, 1).reshape(-1, 1, 1)
        return scalar

    rate, proximity, decay = descent.rate, descent.proximity, task.weight_decay
    coefficients = StepCoefficients(
        rate=factor(rate),
        keep=factor(1 - rate * (proximity + decay)),
        pull=factor(rate * proximity),
        anchored=not absent(proximity),
        decays=decay != 0,
        shrink=factor(rate) * factor(descent.sparsity) if descent.sparse else None,
        smoothing=factor(descent.smoothing),
    )
    return StackedProblem(
        layers=task.layers,
        lead=task.lead,
        anchor=distinct_models(anchor, task.lead),
        start=None if start is None else dense(start).expand(*task.lead, -1).reshape(task.lead.numel(), -1),
        step=coefficients,
        steps=descent.steps,
        batch=batch,
        new_batch_each_step=descent.new_batch_each_step,
        factored=factored,
        may_pad=task.may_pad,
        lookahead=None if descent.lookahead is None else factor(descent.lookahead),
        loss=task.loss,
    )

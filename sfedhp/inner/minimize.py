"""The inner problem θ ≈ argmin ℓ(θ; D) + γ φ_ρ(θ) + λ/2 ‖θ − anchor‖², one primitive for every method."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.scalars import PerRun, Scalar, absent
from sfedhp.core.types import Clock
from sfedhp.core.vectors import smooth_l1_grad, soft_threshold, toward
from sfedhp.inner.layers import Factor, StepCoefficients
from sfedhp.inner.stacked import StackedProblem, gradient_descent
from sfedhp.nn.mlp import distinct_models
from sfedhp.nn.task import Task

Solver = Literal["gradient", "nesterov"]
Penalty = Literal["smooth", "l1"]
Path = Literal["sample-space", "stacked", "plain"]


def even_steps_caution(steps: int, rate: float, proximity: float) -> str:
    """What to say where K steps on one mini-batch tend to end above where they began; nothing elsewhere.

    Across a valley with slopes ±G, and with a = 1 − ηλ, an even K of steps that swing over it end
    ηG (1 − a^K)/(1 + a) up the wall they came from, steps that stay on one side ηG (1 − a^K)/(1 − a) down.
    From ηλ = 1 on the way up is the longer one. An odd K ends below in both cases.
    """
    if steps % 2 or rate * proximity < 1:
        return ""
    return (
        f"K = {steps} is even and ηλ = {rate * proximity:.3g} is not below 1: such steps tend to lead "
        "uphill, and the run to collapse. Choose an odd algorithm.personal_steps, or a smaller "
        "algorithm.personal_rate."
    )


def minimize(
    task: Task,
    clock: Clock,
    anchor: Tensor,
    *,
    steps: int,
    rate: Scalar,
    proximity: Scalar = 0.0,
    start: Tensor | Factored | None = None,
    sparsity: Scalar | Tensor = 0.0,
    smoothing: Scalar = 1.0,
    step: int = 0,
    fresh: bool = False,
    factored: bool = False,
    solver: Solver = "gradient",
    tolerance: float = 0.0,
    penalty: Penalty = "smooth",
    ahead: Scalar | None = None,
) -> Tensor | Factored:
    """Gradient steps on the inner problem.

    Args:
        task: whose problem.
        clock: when; with `step` it decides the mini-batch.
        anchor: (..., d), the center of the pull.
        steps: K.
        rate: η.
        proximity: λ.
        start: where to begin; None: at the anchor.
        sparsity: γ; a tensor (..., 1) where it differs between clients.
        smoothing: ρ.
        step: the key of the (first) mini-batch.
        fresh: a new mini-batch every step instead of one for all.
        factored: the caller can work with a `Factored`; without it the result is a tensor.
        solver: plain steps, or Nesterov's: from y = x + k/(k+3) (x − x_before).
        tolerance: ν; a client stops before a step whose gradient has ‖∇H‖² ≤ ν. 0: never.
        penalty: γ φ_ρ as a part of the gradient, or γ‖θ‖₁ by its proximal step, which leaves true zeros.
        ahead: α; the gradient of the loss is taken at θ − α ∇ℓ(θ; D), D of key `step + 2k`, on a D′ of key
            `step + 2k + 1`. None: at θ.
    """
    way = path(
        task,
        fresh=fresh,
        sparsity=sparsity,
        solver=solver,
        tolerance=tolerance,
        penalty=penalty,
        ahead=ahead,
    )
    if way != "plain" and steps:
        carried = None if start is None else dense(start).expand(*task.lead, -1)
        problem = StackedProblem(
            layers=task.layers,
            lead=task.lead,
            anchor=distinct_models(anchor, task.lead),
            start=None if carried is None else carried.reshape(task.lead.numel(), -1),
            step=_step_coefficients(task, anchor, rate, proximity, sparsity, smoothing),
            steps=steps,
            batch=lambda turn: task.batch(clock, step + turn),
            new_batch_each_step=fresh,
            factored=factored,
            may_pad=task.may_pad,
            lookahead=None if ahead is None else _factor(ahead, task, anchor),
        )
        return gradient_descent(problem)
    point = before = anchor if start is None else dense(start)
    going: Tensor | bool = True
    for turn in range(steps):
        here = point + turn / (turn + 3) * (point - before) if solver == "nesterov" else point
        if ahead is not None:
            there = here - ahead * task.gradient(here, task.batch(clock, step + 2 * turn))
            grad = task.gradient(there, task.batch(clock, step + 2 * turn + 1))
        else:
            if fresh or not turn:
                batch = task.batch(clock, step + turn)
            grad = task.gradient(here, batch)
        if penalty == "smooth" and not _absent(sparsity):
            grad += sparsity * smooth_l1_grad(here, smoothing)
        # θ − η λ (θ − anchor) − η ∇, each array of d numbers being read as rarely as can be
        near = here if absent(proximity) else toward(here, anchor, rate * proximity)
        moved = near - rate * grad
        if penalty == "l1" and not _absent(sparsity):
            moved = soft_threshold(moved, rate * sparsity)
        if tolerance:
            mapping = (here - moved) / rate  # the gradient, or what stands for it with an ℓ1 penalty
            going = (mapping.square().sum(-1, keepdim=True) > tolerance) & going
            moved = torch.where(going, moved, point)
        before, point = point, moved
    return point


def path(
    task: Task,
    *,
    fresh: bool = False,
    sparsity: Scalar | Tensor = 0.0,
    solver: Solver = "gradient",
    tolerance: float = 0.0,
    penalty: Penalty = "smooth",
    ahead: Scalar | None = None,
) -> Path:
    """How `minimize` will work: the fastest way that this problem allows.

    Returns:
        "sample-space": models are not built but held as changes of their anchors; "stacked": they are built
        layer by layer and moved in place; "plain": flat vectors and the task's gradient, for any network.
    """
    sparse = not _absent(sparsity)
    if not task.layers or solver != "gradient" or tolerance or (sparse and penalty != "smooth"):
        return "plain"
    if ahead is not None and task.weight_decay:
        return "plain"  # the decay would be taken ahead too
    return "stacked" if fresh or sparse or ahead is not None else "sample-space"


def _step_coefficients(
    task: Task,
    anchor: Tensor,
    rate: Scalar,
    proximity: Scalar,
    sparsity: Scalar | Tensor,
    smoothing: Scalar,
) -> StepCoefficients:
    """The numbers of a step; those that differ between clients as (clients, 1, 1)."""
    own = _factor(rate, task, anchor)
    return StepCoefficients(
        rate=own,
        keep=_factor(1 - rate * (proximity + task.weight_decay), task, anchor),
        pull=_factor(rate * proximity, task, anchor),
        anchored=not absent(proximity),
        decays=task.weight_decay != 0,
        shrink=None if _absent(sparsity) else own * _factor(sparsity, task, anchor),
        smoothing=_factor(smoothing, task, anchor),
    )


def _factor(scalar: Scalar | Tensor, task: Task, like: Tensor) -> Factor:
    if isinstance(scalar, PerRun):
        scalar = scalar.like(like.new_empty(task.lead)).unsqueeze(-1)
    if isinstance(scalar, Tensor):
        scalar = scalar.expand(*task.lead, 1).reshape(-1, 1, 1)
    return scalar


def _absent(sparsity: Scalar | Tensor) -> bool:
    return not isinstance(sparsity, Tensor) and absent(sparsity)

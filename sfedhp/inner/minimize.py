"""The inner problem θ ≈ argmin ℓ(θ; D) + γ φ_ρ(θ) + λ/2 ‖θ − anchor‖², one primitive for every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, dense
from sfedhp.core.scalars import PerRun, Scalar, absent
from sfedhp.core.types import Batch, Clock
from sfedhp.core.vectors import smooth_l1_grad, soft_threshold, toward
from sfedhp.inner.anchor_mix import Factor, StepCoefficients
from sfedhp.inner.stacked import StackedProblem, gradient_descent
from sfedhp.nn.client_groups import Pick, groups_of_like_size, in_groups
from sfedhp.nn.epochs import Epochs
from sfedhp.nn.mlp import distinct_models
from sfedhp.nn.task import Task

Solver = Literal["gradient", "nesterov"]
Penalty = Literal["smooth", "l1"]
Path = Literal["sample-space", "stacked", "plain"]


@dataclass(frozen=True)
class Descent:
    """What an algorithm says about its inner steps; the defaults are plain gradient steps."""

    steps: int  # K
    rate: Scalar  # η
    proximity: Scalar = 0.0  # λ, the pull to the anchor
    sparsity: Scalar | Tensor = 0.0  # γ; a tensor (..., 1) where it differs between clients
    smoothing: Scalar = 1.0  # ρ
    penalty: Penalty = "smooth"  # γ φ_ρ in the gradient, or γ‖θ‖₁ by its proximal step, with true zeros
    solver: Solver = "gradient"
    tolerance: float = 0.0  # ν: a client stops before a step with ‖∇H‖² ≤ ν; 0: never
    lookahead: Scalar | None = None  # α of Per-FedAvg: the gradient at θ − α ∇ℓ(θ; D), on a D′; None: at θ
    new_batch_each_step: bool = False  # else all steps use the first mini-batch
    epochs: int = 0  # passes over a client's rows, a step for each mini-batch; 0: `steps` steps
    momentum: Scalar = 0.0  # of `torch.optim.SGD`; the velocity starts at zero
    clip: Scalar = 0.0  # a client's longest gradient, as `torch.nn.utils.clip_grad_norm_`; 0: any length
    part: Tensor | None = None  # (d,) bool: the weights that move; None: all
    linear: Tensor | None = None  # y (..., d): ⟨y, θ⟩ is added to the loss; None: nothing

    def __post_init__(self) -> None:
        plain = self.solver == "gradient" and self.penalty == "smooth" and not self.tolerance
        if self.sgd and not (plain and self.lookahead is None):
            raise ValueError("epochs, momentum and clip are for plain steps: leave out the other solvers")
        if self.restricted and self.lookahead is not None:
            raise ValueError("part and linear are for steps without a lookahead")

    @property
    def sgd(self) -> bool:
        """Whether it needs more than steps of one length on drawn mini-batches: epochs, momentum, clip."""
        return bool(self.epochs) or not absent(self.momentum) or not absent(self.clip)

    @property
    def restricted(self) -> bool:
        """Whether only some weights move, or the loss has a linear term."""
        return self.part is not None or self.linear is not None

    def of(self, gradient: Tensor) -> Tensor:
        """The gradient with that of the linear term, and zeros where weights do not move."""
        if self.linear is not None:
            gradient = gradient + self.linear
        return gradient if self.part is None else torch.where(self.part, gradient, 0.0)

    @property
    def sparse(self) -> bool:
        """Whether there is a penalty: γ is not a plain 0."""
        return isinstance(self.sparsity, Tensor) or not absent(self.sparsity)


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

        def solve(own: Task, pick: Pick) -> Tensor:
            sparsity, linear = descent.sparsity, descent.linear
            steps = replace(
                descent,
                sparsity=pick(sparsity) if isinstance(sparsity, Tensor) else sparsity,
                linear=None if linear is None else pick(linear),
            )
            return _sgd_steps(own, clock, batch, pick(anchor), pick(begin), steps, first_batch)

        runs = int(any(isinstance(option, PerRun) for option in vars(descent).values()))
        groups = groups_of_like_size(task, descent.epochs, runs) if descent.epochs else []
        if groups:
            return in_groups(groups, task, begin, solve, runs)
        return _sgd_steps(task, clock, batch, anchor, begin, descent, first_batch)
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


def _sgd_steps(
    task: Task,
    clock: Clock,
    batch: Callable[[int], Batch],
    anchor: Tensor,
    start: Tensor,
    descent: Descent,
    first_epoch: int,
) -> Tensor:
    """Steps as a loop over `torch.optim.SGD` takes them, on flat vectors:

        g = clip(∇ℓ(θ; D) + γ ∇φ_ρ(θ) + λ (θ − anchor)) + μ θ,   v ← m v + g,   θ ← θ − η v,

    where μ is the weight decay, which torch adds after clipping, and m the momentum. With epochs, a
    client whose mini-batches are used up stays where it is, and so do its running statistics.
    """
    epochs = Epochs.of(task, clock, descent.epochs, first_epoch) if descent.epochs else None
    batch, steps = (epochs.batch, epochs.steps) if epochs else (batch, descent.steps)
    short = epochs is not None and epochs.may_pad
    undecayed = replace(task, weight_decay=0.0, min_rows=0 if short else task.min_rows)
    point, velocity = start, torch.zeros_like(start)
    for step in range(steps):
        rows = batch(step) if epochs or descent.new_batch_each_step else batch(0).at_step(step)
        statistics = undecayed.statistics
        gradient = undecayed.gradient(point, rows)
        if not absent(descent.proximity):
            gradient = gradient + descent.proximity * (point - anchor)
        if descent.sparse:
            gradient = gradient + descent.sparsity * smooth_l1_grad(point, descent.smoothing)
        gradient = descent.of(gradient)
        if not absent(descent.clip):
            gradient = _clipped(gradient, descent.clip)
        if task.weight_decay:
            gradient = gradient + task.weight_decay * point
            gradient = gradient if descent.part is None else torch.where(descent.part, gradient, 0.0)
        velocity = gradient if absent(descent.momentum) else descent.momentum * velocity + gradient
        moved = point - descent.rate * velocity
        if short:
            active = rows.real.any(-1, keepdim=True)
            moved = torch.where(active, moved, point)
            if statistics is not None and undecayed.statistics is not None:
                undecayed.statistics = torch.where(active, undecayed.statistics, statistics)
        point = moved
    task.statistics = undecayed.statistics
    return point


def _clipped(gradient: Tensor, longest: Scalar) -> Tensor:
    """The gradient, shortened where its norm is above `longest`; torch's 1e-6 avoids a division by 0."""
    share: Tensor = longest / (gradient.norm(dim=-1, keepdim=True) + 1e-6)
    return gradient * share.clamp_max(1.0)


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
        return pulled - rate * gradient
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

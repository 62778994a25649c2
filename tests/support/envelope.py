"""F_ij of the paper's eq. (3) as a number, with its gradient: what the theorems are about, computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from sfedhp.core.factored import dense
from sfedhp.core.types import Clock
from sfedhp.core.vectors import smooth_l1, smooth_l1_grad
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.losses import cross_entropy
from sfedhp.nn.task import Task
from sfedhp.theory.constants import Constants

Loss = Callable[[Task, Tensor], Tensor]


class Envelope(NamedTuple):
    """F_ij of each client of a stack at its model w."""

    value: Tensor  # (...), F_ij(w)
    gradient: Tensor  # (..., d), λ₂ (w − φ̂) + γ₂ ∇φ_ρ(w)
    personal: Tensor  # (..., d), θ̂
    center: Tensor  # (..., d), φ̂


def data_loss(task: Task, model: Tensor) -> Tensor:
    """ℓ_ij (...) over all of a client's rows, weight decay included."""
    batch = task.everything()
    loss = cross_entropy(task.scores(model, batch.inputs), batch.labels, batch.real)
    return loss + task.weight_decay / 2 * model.square().sum(-1)


def envelope(
    task: Task, model: Tensor, constants: Constants, *, loss: Loss = data_loss, steps: int = 2000
) -> Envelope:
    """F_ij at models (..., d), its inner problems solved by many accelerated steps on all rows.

    φ can be minimized out by hand: θ̂ is the minimum of ℓ + γ₁ φ_ρ + λ̄/2 ‖θ − w‖², and
    φ̂ = (λ₁ θ̂ + λ₂ w)/(λ₁ + λ₂).
    """
    model = model.expand(*task.lead, model.shape[-1])
    own, pull = constants.client_proximity, constants.edge_proximity
    descent = Descent(
        steps=steps,
        rate=1 / (constants.penalized_smoothness + constants.series_proximity),
        proximity=constants.series_proximity,
        sparsity=constants.client_sparsity,
        smoothing=constants.smoothing,
        solver="nesterov",
    )
    personal = dense(minimize(task, Clock(0), model, descent))
    center = (own * personal + pull * model) / (own + pull)
    value = (
        loss(task, personal)
        + own / 2 * (personal - center).square().sum(-1)
        + pull / 2 * (center - model).square().sum(-1)
        + constants.client_sparsity * smooth_l1(personal, constants.smoothing)
        + constants.edge_sparsity * smooth_l1(model, constants.smoothing)
    )
    grad = pull * (model - center) + constants.edge_sparsity * smooth_l1_grad(model, constants.smoothing)
    return Envelope(value, grad, personal, center)

"""What an algorithm says about the steps of its inner problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sfedhp.core.scalars import Scalar, absent

Solver = Literal["gradient", "nesterov"]
Penalty = Literal["smooth", "l1"]


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

"""The coefficients of an inner step, and how much of start and anchor is left after some of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.nn.mlp import LinearSlice

Factor = float | Tensor  # one number for all clients, or one for each, (clients, 1, 1)


class StepCoefficients(NamedTuple):
    """The numbers of one step θ ← q θ + ηλ φ − ηγ ∇φ_ρ(θ) − η ∇ℓ(θ; D), where φ is the anchor."""

    rate: Factor  # η
    keep: Factor  # q = 1 − η (λ + μ), μ being the weight decay
    pull: Factor  # ηλ
    anchored: bool  # whether λ is present at all
    decays: bool  # whether μ > 0; then a model at its anchor does not stay there
    shrink: Factor | None = None  # ηγ; None: no sparsity
    smoothing: Factor = 1.0  # ρ

    @property
    def keeps_nothing(self) -> bool:
        """Whether q = 0, as with λ = 1/η and μ = 0: then the result depends on the last step only."""
        return not isinstance(self.keep, Tensor) and self.keep == 0


class AnchorMix:
    """The part a_k θ₀ + c_k φ of the models after k steps: a mix of their start θ₀ and their anchor φ.

    A step multiplies both shares by q and adds ηλ to c:

        a₀ = 1, c₀ = 0,   a_{k+1} = q a_k,   c_{k+1} = q c_k + ηλ

    Without weight decay q + ηλ = 1, so a_k + c_k = 1 for every k.
    """

    def __init__(self, anchor: Tensor, start: Tensor | None, step: StepCoefficients, clients: int):
        self.anchor = anchor  # φ (groups, d), each shared by consecutive clients
        self.start = start  # θ₀ (clients, d); None: the anchor
        self.step = step
        self.clients = clients
        self.start_share: Factor = 1.0  # a
        self.anchor_share: Factor = 0.0  # c

    def advance(self) -> None:
        """Update the shares a and c after a step."""
        keep, pull = self.step.keep, self.step.pull
        self.start_share, self.anchor_share = keep * self.start_share, keep * self.anchor_share + pull

    @property
    def total_share(self) -> Factor:
        """a + c, the factor of φ in models that started at φ; exactly 1 without weight decay."""
        return self.start_share + self.anchor_share if self.step.decays else 1.0

    def by_group(self, each: Tensor) -> Tensor:
        """A view of (clients, ...) as (groups, clients of a group, ...)."""
        return each.view(self.anchor.shape[0], -1, *each.shape[1:])

    def add_anchor(self, value: Tensor, anchor: Tensor, factor: Factor) -> None:
        """value ← value + factor · anchor in place, for values (clients, ...) and anchors (groups, ...)."""
        wide, center = self.by_group(value), anchor.unsqueeze(1)
        if isinstance(factor, Tensor):
            wide.addcmul_(center, self._broadcast(factor, wide))
        else:
            wide.add_(center, alpha=factor)

    def decay_towards(self, value: Tensor, anchor: Tensor) -> None:
        """value ← q value + ηλ anchor in place; one pass over the memory where q = 1 − ηλ."""
        if self.step.decays:
            value.mul_(self.step.keep)
            self.add_anchor(value, anchor, self.step.pull)
            return
        wide, pull = self.by_group(value), self.step.pull
        if self.step.keeps_nothing:
            wide.copy_(anchor.unsqueeze(1))
            return
        weight = self._broadcast(pull, wide) if isinstance(pull, Tensor) else pull
        torch.lerp(wide, anchor.unsqueeze(1), weight, out=wide)

    def write_mix(self, layer: LinearSlice, out: Tensor) -> None:
        """Write a layer's slice of a θ₀ + c φ to `out` (clients, size)."""
        anchor = layer.part(self.anchor)
        if self.start is None:
            self.by_group(out).copy_(anchor.unsqueeze(1))
            if self.step.decays:
                out.mul_(_per_client(self.total_share))
        elif self.step.decays:
            torch.mul(layer.part(self.start), _per_client(self.start_share), out=out)
            self.add_anchor(out, anchor, self.anchor_share)
        else:
            # a + c = 1
            start, share = self.by_group(layer.part(self.start)), self.anchor_share
            weight = self.by_group(share.view(-1, 1)) if isinstance(share, Tensor) else share
            torch.lerp(start, anchor.unsqueeze(1), weight, out=self.by_group(out))

    def _broadcast(self, factor: Tensor, wide: Tensor) -> Tensor:
        """A factor (clients, 1, 1) in a shape that multiplies `wide` (groups, clients of a group, ...)."""
        return self.by_group(factor).view(*wide.shape[:2], *(1,) * (wide.ndim - 2))


def _per_client(factor: Factor) -> Factor:
    """A factor (clients, 1, 1) as (clients, 1); a number as it is."""
    return factor.view(-1, 1) if isinstance(factor, Tensor) else factor

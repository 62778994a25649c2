"""Layers of stacked perceptrons on their way through the inner steps, built or never built.

K steps of rate η on ℓ(θ; D) + λ/2 ‖θ − φ‖² with weight decay μ from θ₀ leave every linear layer at
θ_k = a_k θ₀ + c_k φ + Σ_s A_sᵀ H_s: H_s are the layer's inputs at step s, A_s its outputs' slopes times −η.
Every step multiplies a, c and all A by q = 1 − η (λ + μ) and adds ηλ to c, from a = 1 and c = 0. So a layer
can work with the few rows of H and A instead of its weights, exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import Layer, add_change
from sfedhp.core.vectors import one_like, smooth_l1_grad
from sfedhp.nn.matmul import bend, few, lowered, raised, rise
from sfedhp.nn.mlp import Affine

Factor = float | Tensor  # one for all clients, or (clients, 1, 1)


class StepCoefficients(NamedTuple):
    """What a step does: θ ← q θ + ηλ φ − ηγ ∇φ_ρ(θ) − η ∇ℓ(θ; D)."""

    rate: Factor  # η
    keep: Factor  # q = 1 − η (λ + μ)
    pull: Factor  # ηλ
    anchored: bool  # whether there is a pull at all
    decays: bool  # whether there is weight decay: then a model does not rest at its anchor
    shrink: Factor | None = None  # ηγ
    smoothing: Factor = 1.0  # ρ

    @property
    def forgets(self) -> bool:
        """Whether q = 0, as with λ = 1/η: then only the last step counts."""
        return not isinstance(self.keep, Tensor) and self.keep == 0


class AnchorMix:
    """Where models come from, and how much of that is left in them: a_k θ₀ + c_k φ."""

    def __init__(self, anchor: Tensor, start: Tensor | None, step: StepCoefficients, clients: int):
        self.anchor = anchor  # φ (groups, d): as many consecutive clients as share one are a group
        self.start = start  # θ₀ (clients, d); None: the anchor
        self.step = step
        self.clients = clients
        self.start_share: Factor = 1.0  # a
        self.anchor_share: Factor = 0.0  # c

    def advance(self) -> None:
        """A step was taken."""
        keep, pull = self.step.keep, self.step.pull
        self.start_share, self.anchor_share = keep * self.start_share, keep * self.anchor_share + pull

    @property
    def share(self) -> Factor:
        """a + c, what is left of the anchor where models started there; exactly 1 without weight decay."""
        return self.start_share + self.anchor_share if self.step.decays else 1.0

    def by_group(self, each: Tensor) -> Tensor:
        """(clients, ...) as (groups, clients of a group, ...)."""
        return each.view(self.anchor.shape[0], -1, *each.shape[1:])

    def toward(self, value: Tensor, anchor: Tensor, factor: Factor) -> None:
        """Add to each client's value its group's anchor (groups, ...) times a factor, in place."""
        wide, center = self.by_group(value), anchor.unsqueeze(1)
        if isinstance(factor, Tensor):
            wide.addcmul_(center, self._like(factor, wide))
        else:
            wide.add_(center, alpha=factor)

    def fade(self, value: Tensor, anchor: Tensor) -> None:
        """θ ← q θ + ηλ φ, in place: one pass where q = 1 − ηλ."""
        if self.step.decays:
            value.mul_(self.step.keep)
            self.toward(value, anchor, self.step.pull)
            return
        wide, share = self.by_group(value), self.step.pull
        if self.step.forgets:
            wide.copy_(anchor.unsqueeze(1))
            return
        weight = self._like(share, wide) if isinstance(share, Tensor) else share
        torch.lerp(wide, anchor.unsqueeze(1), weight, out=wide)

    def _like(self, factor: Tensor, wide: Tensor) -> Tensor:
        """A factor (clients, 1, 1) shaped to multiply values (groups, clients of a group, ...)."""
        return self.by_group(factor).view(*wide.shape[:2], *(1,) * (wide.ndim - 2))

    def mix(self, place: Affine, into: Tensor) -> None:
        """Write a layer's part of a θ₀ + c φ, (clients, size)."""
        anchor = place.part(self.anchor)
        if self.start is None:
            self.by_group(into).copy_(anchor.unsqueeze(1))
            if self.step.decays:
                into.mul_(_flat(self.share))
        elif self.step.decays:
            torch.mul(place.part(self.start), _flat(self.start_share), out=into)
            self.toward(into, anchor, self.anchor_share)
        else:
            # a + c = 1
            start, share = self.by_group(place.part(self.start)), self.anchor_share
            weight = self.by_group(share.view(-1, 1)) if isinstance(share, Tensor) else share
            torch.lerp(start, anchor.unsqueeze(1), weight, out=self.by_group(into))


class Moving(ABC):
    """A layer of every client's model; the axes are (clients, rows, features)."""

    def __init__(self, place: Affine, course: AnchorMix):
        self.place = place
        self.course = course

    @abstractmethod
    def forward(self, rows: Tensor, bent: bool = False, into: Tensor | None = None) -> Tensor:
        """The outputs of these inputs, as the models are now; after a ReLU if `bent`, then written `into`."""

    @abstractmethod
    def backward(self, slopes: Tensor, height: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """The slopes of the inputs, given those of the outputs.

        Where the inputs are outputs `height` of a ReLU, the slopes below that, written `into`.
        """

    @abstractmethod
    def step(self, rows: Tensor, slopes: Tensor) -> None:
        """Move, given the inputs and the outputs' slopes times −η."""

    @abstractmethod
    def build(self, into: Tensor) -> None:
        """Write the layer's weight and bias, (clients, size)."""

    def factors(self) -> Layer | None:
        """The layer's change of the anchor, where it is held as that."""
        return None

    def seat(self, rows: int) -> Layer | None:
        """Where the next step's inputs and slopes may be written at once, so that `step` copies nothing."""
        return None


class Whole(Moving):
    """Built: the weight and the bias of every client, moved in place."""

    def __init__(self, place: Affine, course: AnchorMix):
        super().__init__(place, course)
        origin = course.anchor if course.start is None else course.start
        self.weight = _copies(place.weight(origin), course.clients)
        self.bias = _copies(place.bias(origin), course.clients)
        self.centers = place.weight(course.anchor), place.bias(course.anchor)
        self.ones = self.bias.new_empty(0, 0, 0)

    def forward(self, rows: Tensor, bent: bool = False, into: Tensor | None = None) -> Tensor:
        """As built."""
        return raised(self.bias, rows, self.weight.mT, bent, into)

    def backward(self, slopes: Tensor, height: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """As built."""
        return lowered(slopes, self.weight, height=height, into=into)

    def step(self, rows: Tensor, slopes: Tensor) -> None:
        """θ ← q θ + ηλ φ − ηγ ∇φ_ρ(θ) − η δᵀH, and the same for the bias with a column of ones as H."""
        step = self.course.step
        if step.shrink is None and few(slopes.mT):
            from sfedhp.nn.kernels import matmul as kernels

            centers = self.centers if step.anchored else None
            kernels.move(self.weight, self.bias, slopes, rows, step.keep, centers, step.pull)
            return
        if self.ones.shape[-1] != rows.shape[1]:
            self.ones = rows.new_ones(rows.shape[0], 1, rows.shape[1])
        self._move(self.weight, self.centers[0], slopes.mT, rows)
        self._move(self.bias, self.centers[1], self.ones, slopes)

    def build(self, into: Tensor) -> None:
        """A copy."""
        into[:, : -self.place.outputs].copy_(self.weight.flatten(1))
        into[:, -self.place.outputs :].copy_(self.bias.flatten(1))

    def _move(self, value: Tensor, center: Tensor, left: Tensor, right: Tensor) -> None:
        step, sparser = self.course.step, None
        if step.shrink is not None:
            sparser = smooth_l1_grad(value, step.smoothing).mul_(step.shrink)
        if step.anchored:
            self.course.fade(value, center)
            value.baddbmm_(left, right)
        elif isinstance(step.keep, Tensor):
            value.mul_(step.keep).baddbmm_(left, right)
        else:
            value.baddbmm_(left, right, beta=step.keep)
        if sparser is not None:
            value.sub_(sparser)


class Factors(Moving):
    """Never built, near an anchor shared by a group: H and A grow by a batch every step."""

    def __init__(self, place: Affine, course: AnchorMix, rows: int, steps: int):
        super().__init__(place, course)
        # Where only the last step counts there are two seats in turn: the old is read as the new is written.
        self.room = rows * (2 if course.step.forgets else steps)
        self.inputs = course.anchor.new_empty(course.clients, self.room, place.inputs)
        self.coefficients = course.anchor.new_empty(course.clients, self.room, place.outputs)
        self.window = slice(0, 0)  # the rows that count
        self.one = one_like(course.anchor)  # the bias is a column of ones in every product of inputs

    def forward(self, rows: Tensor, bent: bool = False, into: Tensor | None = None) -> Tensor:
        """H_k θ_k = H_k φ + Σ_s (H_k H_sᵀ) A_s, the first product one for all clients of a group."""
        outputs = self._anchored(self.place.forward(self.course.anchor, rows))
        if not self.window.stop:
            return rise(outputs, into) if bent else outputs
        gram = torch.baddbmm(self.one, rows, self.inputs[:, self.window].mT)
        return raised(outputs, gram, self.coefficients[:, self.window], bent, into, spent=True)

    def backward(self, slopes: Tensor, height: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """δ θ_kᵀ = δ φᵀ + Σ_s (δ A_sᵀ) H_s."""
        below = self._anchored(self.place.backward(self.course.anchor, slopes))
        if not self.window.stop:
            return below if height is None else bend(below, height, into)
        likeness = lowered(slopes, self.coefficients[:, self.window].mT)
        return lowered(likeness, self.inputs[:, self.window], below, height, into)

    def step(self, rows: Tensor, slopes: Tensor) -> None:
        """What is held fades by q, and a batch is added."""
        seat, place = self.seat(rows.shape[1]), self._next(rows.shape[1])
        for new, there in zip((rows, slopes), seat, strict=True):
            if new.data_ptr() != there.data_ptr():
                there.copy_(new)
        if self.course.step.forgets:
            self.window = place
            return
        if self.window.stop:
            self.coefficients[:, self.window].mul_(self.course.step.keep)
        self.window = slice(0, place.stop)

    def seat(self, rows: int) -> Layer:
        """Behind what is held, or in the other seat."""
        place = self._next(rows)
        return Layer(self.inputs[:, place], self.coefficients[:, place])

    def _next(self, rows: int) -> slice:
        first = self.window.stop if self.window.stop + rows <= self.room else 0
        return slice(first, first + rows)

    def build(self, into: Tensor) -> None:
        """The sum written out."""
        self.course.mix(self.place, into)
        add_change(into, self.factors())

    def factors(self) -> Layer:
        """As held."""
        return Layer(self.inputs[:, self.window], self.coefficients[:, self.window])

    def _anchored(self, outputs: Tensor) -> Tensor:
        return outputs.mul_(self.course.share) if self.course.step.decays else outputs


class First(Moving):
    """Never built, with the same inputs at every step: all A_s collapse into one."""

    def __init__(self, place: Affine, course: AnchorMix, rows: Tensor):
        super().__init__(place, course)
        self.rows = rows
        self.still = place.forward(course.anchor, rows)  # X φ
        self.outputs = self.still if course.start is None else place.forward(course.start, rows)
        self.gram: Tensor | None = None  # X Xᵀ + 1
        self.coefficients: Tensor | None = None

    def forward(self, rows: Tensor, bent: bool = False, into: Tensor | None = None) -> Tensor:
        """X θ_k = X (a θ₀ + c φ) + (X Xᵀ) A."""
        if self.coefficients is None:
            return rise(self.outputs, into) if bent else self.outputs
        if self.gram is None:
            self.gram = torch.baddbmm(one_like(rows), rows, rows.mT)
        return raised(self.outputs, self.gram, self.coefficients, bent, into)

    def backward(self, slopes: Tensor, height: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """Nobody asks."""
        raise NotImplementedError("nothing lies below the first layer")

    def step(self, rows: Tensor, slopes: Tensor) -> None:
        """A ← q A − η δ."""
        keep, pull = self.course.step.keep, self.course.step.pull
        if self.coefficients is None or self.course.step.forgets:
            self.coefficients = slopes
        elif isinstance(keep, Tensor):
            self.coefficients = torch.addcmul(slopes, self.coefficients, keep)
        else:
            self.coefficients = torch.add(slopes, self.coefficients, alpha=keep)
        if self.course.start is not None or self.course.step.decays:
            # X (a θ₀ + c φ), step by step
            self.outputs = keep * self.outputs + pull * self.still

    def build(self, into: Tensor) -> None:
        """The sum written out."""
        self.course.mix(self.place, into)
        add_change(into, self._change())

    def factors(self) -> Layer | None:
        """As held, unless that is much larger than the layer; a mean over clients is faster so."""
        place = self.place
        held = self.rows.shape[1] * (place.inputs + place.outputs)
        return self._change() if held <= 4 * place.inputs * place.outputs else None

    def _change(self) -> Layer:
        assert self.coefficients is not None
        return Layer(self.rows, self.coefficients)


def _copies(values: Tensor, clients: int) -> Tensor:
    """Values (groups, ...) as (clients, ...), each client its own."""
    own = values.new_empty(clients, *values.shape[1:])
    own.view(values.shape[0], -1, *values.shape[1:]).copy_(values.unsqueeze(1))
    return own


def _flat(factor: Factor) -> Factor:
    """(clients, 1)."""
    return factor.view(-1, 1) if isinstance(factor, Tensor) else factor

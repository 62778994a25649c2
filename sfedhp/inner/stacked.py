"""Inner steps of stacked perceptrons: every layer in the form that costs least, all of them exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, Layer
from sfedhp.core.types import Batch
from sfedhp.core.vectors import one_like
from sfedhp.inner.layers import AnchorMix, Factor, Factors, First, Moving, StepCoefficients, Whole
from sfedhp.nn.matmul import lowered, raised
from sfedhp.nn.mlp import Affine, CrossEntropy, Layers


class StackedProblem(NamedTuple):
    """The inner problems of a stack of clients."""

    layers: Layers
    lead: torch.Size
    anchor: Tensor  # φ (groups, d): as many consecutive clients as share one are a group
    start: Tensor | None  # θ₀ (clients, d); None: the anchor
    step: StepCoefficients
    steps: int
    batch: Callable[[int], Batch]  # the mini-batch of a step
    new_batch_each_step: bool  # whether every step has its own
    factored: bool  # whether a `Factored` will do
    may_pad: bool = True  # whether rows of a mini-batch may only pad a shorter client
    lookahead: Factor | None = (
        None  # α; slopes are taken one step of this rate ahead, on a mini-batch of its own
    )

    @property
    def near(self) -> bool:
        """Whether models can stay changes of their anchors to the end, or anchors are shared by clients."""
        return self.start is None and (self.factored or self.anchor.shape[0] < self.lead.numel())


class Ahead:
    """A layer as it would be after one more change, which is not made."""

    def __init__(self, layer: Moving, change: Layer):
        self.layer = layer
        self.change = change
        self.one = one_like(change.inputs)  # the bias is a column of ones in every product of inputs

    def forward(self, rows: Tensor, bent: bool = False, into: Tensor | None = None) -> Tensor:
        """X θ + (X Hᵀ) A."""
        gram = torch.baddbmm(self.one, rows, self.change.inputs.mT)
        return raised(self.layer.forward(rows), gram, self.change.coefficients, bent, into, spent=True)

    def seat(self, rows: int) -> None:
        """Nothing is kept of what is seen ahead."""

    def backward(self, slopes: Tensor, height: Tensor | None = None, into: Tensor | None = None) -> Tensor:
        """δ θᵀ + (δ Aᵀ) H."""
        likeness = lowered(slopes, self.change.coefficients.mT)
        return lowered(likeness, self.change.inputs, self.layer.backward(slopes), height, into)


def gradient_descent(problem: StackedProblem) -> Tensor | Factored:
    """The models (*lead, d) after all steps; as `Factored` where that will do and some layer is held so."""
    course = AnchorMix(problem.anchor, problem.start, problem.step, problem.lead.numel())
    moving: list[Moving] = []
    for turn in range(problem.steps):
        if problem.lookahead is not None:
            rows, slope = _taken(problem, 2 * turn, problem.lookahead)
        elif problem.new_batch_each_step or not turn:
            rows, slope = _taken(problem, turn, problem.step.rate)
        moving = moving or [_layer(place, problem, course, rows) for place in problem.layers]
        found = _slopes(moving, rows, slope)
        if problem.lookahead is not None:
            view = [Ahead(layer, change) for layer, change in zip(moving, found, strict=True)]
            found = _slopes(view, *_taken(problem, 2 * turn + 1, problem.step.rate))
        # From the top: what a backward pass read last is still near the processor.
        for layer, change in reversed(list(zip(moving, found, strict=True))):
            layer.step(change.inputs, change.coefficients)
        course.advance()
    changes = [layer.factors() for layer in moving] if problem.factored and problem.start is None else []
    return _factored(moving, changes, problem, course) if any(changes) else _built(moving, problem)


def _taken(problem: StackedProblem, turn: int, rate: Factor) -> tuple[Tensor, CrossEntropy]:
    """A mini-batch's rows (clients, rows, features), and the slopes of its loss times −rate."""
    batch = problem.batch(turn)
    rows = batch.inputs.reshape(problem.lead.numel(), batch.labels.shape[-1], -1)
    return rows, CrossEntropy(batch, rows, problem.layers[-1].outputs, -1 * rate, problem.may_pad)


def _layer(place: Affine, problem: StackedProblem, course: AnchorMix, rows: Tensor) -> Moving:
    """The kind of layer that costs least."""
    steps, count, weights = problem.steps, rows.shape[1], place.inputs * place.outputs
    if problem.new_batch_each_step or problem.lookahead is not None or problem.step.shrink is not None:
        return Whole(place, course)
    if not place.first:
        # The weights are multiplied twice instead of twice a step; a Gram matrix is made and used instead.
        gram = count * (place.inputs + steps * place.outputs) if steps > 1 else 0
        return First(place, course, rows) if gram <= 2 * (steps - 1) * weights else Whole(place, course)
    held = count if problem.step.forgets else steps * count
    smaller = held * (place.inputs + place.outputs) < weights
    return Factors(place, course, count, steps) if problem.near and smaller else Whole(place, course)


def _slopes(layers: Sequence[Moving | Ahead], rows: Tensor, slope: CrossEntropy) -> list[Layer]:
    """Every layer's inputs, and its outputs' slopes times −rate: together the change of a step."""
    heights, seats = [rows], [layer.seat(rows.shape[1]) for layer in layers]
    for layer, seat in zip(layers, seats[1:], strict=False):
        heights.append(layer.forward(heights[-1], bent=True, into=None if seat is None else seat.inputs))
    slopes = slope(layers[-1].forward(heights[-1]))
    found = [Layer(heights[-1], slopes)]
    for turn in range(len(layers) - 1, 0, -1):
        below = seats[turn - 1]
        into = None if below is None else below.coefficients
        slopes = layers[turn].backward(slopes, heights[turn], into)
        found.append(Layer(heights[turn - 1], slopes))
    return found[::-1]


def _built(moving: list[Moving], problem: StackedProblem) -> Tensor:
    flat = problem.anchor.new_empty(problem.lead.numel(), problem.anchor.shape[-1])
    for layer in moving:
        layer.build(layer.place.part(flat))
    return flat.view(*problem.lead, -1)


def _factored(
    moving: list[Moving], changes: list[Layer | None], problem: StackedProblem, course: AnchorMix
) -> Factored:
    """The models as changes of their anchors, where that is smaller."""
    lead, parts = problem.lead, list[Layer | Tensor]()
    for layer, change in zip(moving, changes, strict=True):
        if change is None:
            piece = course.anchor.new_empty(course.clients, layer.place.last - layer.place.first)
            layer.build(piece)
            parts.append(piece.view(*lead, -1))
        else:
            parts.append(Layer(*(factor.view(*lead, *factor.shape[1:]) for factor in change)))
    shared = course.anchor.shape[0] < course.clients
    members = (..., slice(1), slice(None)) if shared else ...
    anchor = course.anchor.unsqueeze(1).expand(-1, course.clients // course.anchor.shape[0], -1)
    anchor = anchor.view(*lead, -1)[members]
    if course.step.decays:
        share = course.share
        anchor = anchor * (share.view(*lead, 1)[members] if isinstance(share, Tensor) else share)
    return Factored(anchor, tuple(parts))

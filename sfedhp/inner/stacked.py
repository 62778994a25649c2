"""Inner gradient steps of a whole stack of perceptrons, each layer in the form that costs least.

Every step runs one forward and one backward pass through all clients' layers, then updates them:

    forward_backward: H, A of every layer  →  layer.update(H, A)  →  mix.advance()

where H are a layer's inputs and A the gradients of its outputs times −η. `inner.layers` says why H and A are
all that a layer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, Layer
from sfedhp.core.types import Batch
from sfedhp.inner.anchor_mix import AnchorMix, Factor, StepCoefficients
from sfedhp.inner.layers import DenseLayer, FixedInputLayer, LayerState, LookaheadLayer, LowRankLayer
from sfedhp.nn.losses import Loss, LossGrad, cross_entropy, loss_grad_of
from sfedhp.nn.mlp import Layers, LinearSlice


class StackedProblem(NamedTuple):
    """The inner problems of a stack of clients."""

    layers: Layers
    lead: torch.Size  # the shape of the stack; `clients` is its number of elements
    anchor: Tensor  # φ (groups, d), each shared by consecutive clients
    start: Tensor | None  # θ₀ (clients, d); None: the anchor
    step: StepCoefficients
    steps: int
    batch: Callable[[int], Batch]  # the mini-batch with this number
    new_batch_each_step: bool  # if not, all steps use mini-batch 0
    factored: bool  # whether the caller accepts a `Factored`
    may_pad: bool = True  # whether a mini-batch may hold padding rows
    # α: take the gradient at θ − α ∇ℓ(θ; D), on a mini-batch other than D. None: take it at θ.
    lookahead: Factor | None = None
    loss: Loss = cross_entropy

    @property
    def may_stay_low_rank(self) -> bool:
        """Whether holding changes of the anchors can pay.

        It can for models that start at their anchor, if the result may be factored or anchors are shared.
        """
        return self.start is None and (self.factored or self.anchor.shape[0] < self.lead.numel())


def gradient_descent(problem: StackedProblem) -> Tensor | Factored:
    """The models (*lead, d) after all steps.

    A `Factored` if the problem accepts one, starts at its anchors, and some layer is held as factors.
    """
    mix = AnchorMix(problem.anchor, problem.start, problem.step, problem.lead.numel())
    layers: list[LayerState] = []
    for step in range(problem.steps):
        if problem.lookahead is not None:
            rows, loss_grad = _rows_and_loss_grad(problem, 2 * step, problem.lookahead)
        elif problem.new_batch_each_step or not step:
            rows, loss_grad = _rows_and_loss_grad(problem, step, problem.step.rate)
        layers = layers or [_choose_form(layer, problem, mix, rows) for layer in problem.layers]
        changes = _forward_backward(layers, rows, loss_grad)
        if problem.lookahead is not None:
            ahead = [LookaheadLayer(layer, change) for layer, change in zip(layers, changes, strict=True)]
            other = _rows_and_loss_grad(problem, 2 * step + 1, problem.step.rate)
            changes = _forward_backward(ahead, *other)
        # From the last layer down, in the order of the backward pass.
        for layer, change in reversed(list(zip(layers, changes, strict=True))):
            layer.update(change.inputs, change.coefficients)
        mix.advance()
    held = [layer.change() for layer in layers] if problem.factored and problem.start is None else []
    return _factored(layers, held, problem, mix) if any(held) else _flat(layers, problem)


def _rows_and_loss_grad(problem: StackedProblem, number: int, rate: Factor) -> tuple[Tensor, LossGrad]:
    """A mini-batch's rows (clients, rows, features), and the gradient of its loss times −rate."""
    batch = problem.batch(number)
    rows = batch.inputs.reshape(problem.lead.numel(), batch.real.shape[-1], -1)
    outputs = problem.layers[-1].outputs
    return rows, loss_grad_of(problem.loss, batch, rows, outputs, -1 * rate, problem.may_pad)


def _choose_form(layer: LinearSlice, problem: StackedProblem, mix: AnchorMix, rows: Tensor) -> LayerState:
    """The layer in the form that costs least for this problem; all forms are equal up to rounding.

    A first layer is chosen by multiplications for each row, another one by how many numbers it holds.
    """
    steps, count, weights = problem.steps, rows.shape[1], layer.inputs * layer.outputs
    if problem.new_batch_each_step or problem.lookahead is not None or problem.step.shrink is not None:
        return DenseLayer(layer, mix)
    if not layer.start:
        # Dense: the weight is multiplied twice a step. Fixed inputs: twice in all, and the Gram matrix X Xᵀ
        # is computed once and multiplied every step.
        gram = count * (layer.inputs + steps * layer.outputs) if steps > 1 else 0
        fixed_is_cheaper = gram <= 2 * (steps - 1) * weights
        return FixedInputLayer(layer, mix, rows) if fixed_is_cheaper else DenseLayer(layer, mix)
    held = count if problem.step.keeps_nothing else steps * count
    smaller = held * (layer.inputs + layer.outputs) < weights
    if problem.may_stay_low_rank and smaller:
        return LowRankLayer(layer, mix, count, steps)
    return DenseLayer(layer, mix)


def _forward_backward(
    layers: Sequence[LayerState | LookaheadLayer], rows: Tensor, loss_grad: LossGrad
) -> list[Layer]:
    """Every layer's inputs H and output gradients times −rate A: together the change of a step.

    Layers that keep H and A get them written into their own memory.
    """
    activations, buffers = [rows], [layer.next_buffer(rows.shape[1]) for layer in layers]
    for layer, buffer in zip(layers, buffers[1:], strict=False):
        out = None if buffer is None else buffer.inputs
        activations.append(layer.forward(activations[-1], relu=True, out=out))
    grads = loss_grad(layers[-1].forward(activations[-1]))
    changes = [Layer(activations[-1], grads)]
    for index in range(len(layers) - 1, 0, -1):
        below = buffers[index - 1]
        out = None if below is None else below.coefficients
        grads = layers[index].backward(grads, activations[index], out)
        changes.append(Layer(activations[index - 1], grads))
    return changes[::-1]


def _flat(layers: list[LayerState], problem: StackedProblem) -> Tensor:
    """The models as flat vectors, (*lead, d)."""
    flat = problem.anchor.new_empty(problem.lead.numel(), problem.anchor.shape[-1])
    for state in layers:
        state.write(state.layer.part(flat))
    return flat.view(*problem.lead, -1)


def _factored(
    layers: list[LayerState], changes: list[Layer | None], problem: StackedProblem, mix: AnchorMix
) -> Factored:
    """The models as their anchors and one change for each layer; layers without one are written out."""
    lead, parts = problem.lead, list[Layer | Tensor]()
    for state, change in zip(layers, changes, strict=True):
        if change is None:
            piece = mix.anchor.new_empty(mix.clients, state.layer.end - state.layer.start)
            state.write(piece)
            parts.append(piece.view(*lead, -1))
        else:
            parts.append(Layer(*(factor.view(*lead, *factor.shape[1:]) for factor in change)))
    shared = mix.anchor.shape[0] < mix.clients
    members = (..., slice(1), slice(None)) if shared else ...
    anchor = mix.anchor.unsqueeze(1).expand(-1, mix.clients // mix.anchor.shape[0], -1)
    anchor = anchor.view(*lead, -1)[members]
    if mix.step.decays:
        share = mix.total_share
        anchor = anchor * (share.view(*lead, 1)[members] if isinstance(share, Tensor) else share)
    return Factored(anchor, tuple(parts))

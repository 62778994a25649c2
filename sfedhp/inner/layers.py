"""Linear layers of stacked clients during the inner steps, in three forms that are equal up to rounding.

A step of rate η on ℓ(θ; D) + λ/2 ‖θ − φ‖² with weight decay μ is

    θ ← q θ + ηλ φ − η ∇ℓ(θ; D),   q = 1 − η (λ + μ).

The gradient of a linear layer's weight is δᵀH, where H (rows, inputs) are the layer's inputs and δ (rows,
outputs) the gradients of its outputs; the gradient of the bias is the sum of δ's rows, that is, H with a
column of ones. So with A = −η δ a step adds AᵀH, and after k steps a layer is

    θ_k = a_k θ₀ + c_k φ + Σ_s A_sᵀ H_s,

where every later step multiplies a, c and all earlier A by q (see `AnchorMix` for a and c). Two steps from
θ₀ = φ without weight decay, for example, give θ₂ = φ + q A₁ᵀH₁ + A₂ᵀH₂. A mini-batch has few rows, so H and A
are often much smaller than the weight, and outputs follow from them without building it:

    X θ_kᵀ = X φᵀ + Σ_s (X H_sᵀ + 1) A_s,   the 1 for the bias.

- `DenseLayer` holds the weight and the bias of every client, and updates them in place.
- `LowRankLayer` holds the H_s and A_s of all steps instead.
- `FixedInputLayer` is for a first layer whose inputs X are the same at every step: then all H_s are X, and
  the A_s add up to one matrix.

Axes are (clients, rows, features).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sfedhp.core.factored import Layer, add_change
from sfedhp.core.vectors import one_like, smooth_l1_grad
from sfedhp.inner.anchor_mix import AnchorMix
from sfedhp.nn.matmul import fits_kernel, matmul_add, matmul_backward, relu_backward, relu_forward
from sfedhp.nn.mlp import LinearSlice


class LayerState(ABC):
    """One layer of every client's model, as it is after the steps so far."""

    def __init__(self, layer: LinearSlice, mix: AnchorMix):
        self.layer = layer
        self.mix = mix

    @abstractmethod
    def forward(self, rows: Tensor, relu: bool = False, out: Tensor | None = None) -> Tensor:
        """Outputs (clients, rows, outputs) for inputs `rows`.

        Args:
            rows: (clients, rows, inputs).
            relu: whether ReLU follows.
            out: memory for the outputs after ReLU; None: new memory.
        """

    @abstractmethod
    def backward(self, grads: Tensor, activation: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Gradients of the inputs, (clients, rows, inputs).

        Args:
            grads: gradients of the outputs, (clients, rows, outputs).
            activation: the layer's inputs, if they are outputs of a ReLU; the gradients returned are then
                those below that ReLU. None: there is no ReLU below.
            out: memory for the gradients below the ReLU; None: new memory.
        """

    @abstractmethod
    def update(self, rows: Tensor, scaled_grads: Tensor) -> None:
        """Take a step.

        Args:
            rows: H, the layer's inputs, (clients, rows, inputs).
            scaled_grads: A = −η δ, the gradients of its outputs times −η, (clients, rows, outputs).
        """

    @abstractmethod
    def write(self, out: Tensor) -> None:
        """Write weight and bias to the layer's slice of flat vectors, (clients, size)."""

    def change(self) -> Layer | None:
        """The factors H and A of θ − (a + c) φ, where the layer is held as those; None otherwise."""
        return None

    def next_buffer(self, rows: int) -> Layer | None:
        """Memory for the H and A of the next step; if they are written there, `update` copies nothing."""
        return None


class DenseLayer(LayerState):
    """Holds every client's weight (clients, outputs, inputs) and bias (clients, 1, outputs)."""

    def __init__(self, layer: LinearSlice, mix: AnchorMix):
        super().__init__(layer, mix)
        origin = mix.anchor if mix.start is None else mix.start
        self.weight = _copy_for_clients(layer.weight(origin), mix.clients)
        self.bias = _copy_for_clients(layer.bias(origin), mix.clients)
        self.anchors = layer.weight(mix.anchor), layer.bias(mix.anchor)
        self.ones = self.bias.new_empty(0, 0, 0)

    def forward(self, rows: Tensor, relu: bool = False, out: Tensor | None = None) -> Tensor:
        """X θᵀ plus the bias."""
        return matmul_add(self.bias, rows, self.weight.mT, relu, out)

    def backward(self, grads: Tensor, activation: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """δ θ, and back through the ReLU below if there is one."""
        return matmul_backward(grads, self.weight, activation=activation, out=out)

    def update(self, rows: Tensor, scaled_grads: Tensor) -> None:
        """θ ← q θ + ηλ φ − ηγ ∇φ_ρ(θ) + AᵀH, and the same for the bias with a column of ones as H."""
        step = self.mix.step
        if step.shrink is None and fits_kernel(scaled_grads.mT):
            from sfedhp.nn.kernels import matmul as kernels

            anchors = self.anchors if step.anchored else None
            kernels.update_layer(self.weight, self.bias, scaled_grads, rows, step.keep, anchors, step.pull)
            return
        if self.ones.shape[-1] != rows.shape[1]:
            self.ones = rows.new_ones(rows.shape[0], 1, rows.shape[1])
        self._update(self.weight, self.anchors[0], scaled_grads.mT, rows)
        self._update(self.bias, self.anchors[1], self.ones, scaled_grads)

    def write(self, out: Tensor) -> None:
        """Copy weight and bias to `out`."""
        out[:, : -self.layer.outputs].copy_(self.weight.flatten(1))
        out[:, -self.layer.outputs :].copy_(self.bias.flatten(1))

    def _update(self, value: Tensor, anchor: Tensor, left: Tensor, right: Tensor) -> None:
        """value ← q value + ηλ anchor − ηγ ∇φ_ρ(value) + left · right, in place."""
        step, penalty = self.mix.step, None
        if step.shrink is not None:
            penalty = smooth_l1_grad(value, step.smoothing).mul_(step.shrink)
        if step.anchored:
            self.mix.decay_towards(value, anchor)
            value.baddbmm_(left, right)
        elif isinstance(step.keep, Tensor):
            value.mul_(step.keep).baddbmm_(left, right)
        else:
            value.baddbmm_(left, right, beta=step.keep)
        if penalty is not None:
            value.sub_(penalty)


class LowRankLayer(LayerState):
    """Holds the inputs H and coefficients A of all steps, for models that started at their anchor."""

    def __init__(self, layer: LinearSlice, mix: AnchorMix, rows: int, steps: int):
        super().__init__(layer, mix)
        # If only the last step counts, two buffers alternate: one is read while the other is written.
        self.capacity = rows * (2 if mix.step.keeps_nothing else steps)
        self.inputs = mix.anchor.new_empty(mix.clients, self.capacity, layer.inputs)
        self.coefficients = mix.anchor.new_empty(mix.clients, self.capacity, layer.outputs)
        self.active = slice(0, 0)  # the rows of both that are in use
        self.one = one_like(mix.anchor)  # added to every product of inputs, for the bias

    def forward(self, rows: Tensor, relu: bool = False, out: Tensor | None = None) -> Tensor:
        """X θ_kᵀ = X φᵀ + Σ_s (X H_sᵀ + 1) A_s; the first product is one for all clients of a group."""
        outputs = self._scaled(self.layer.forward(self.mix.anchor, rows))
        if not self.active.stop:
            return relu_forward(outputs, out) if relu else outputs
        gram = torch.baddbmm(self.one, rows, self.inputs[:, self.active].mT)
        return matmul_add(outputs, gram, self.coefficients[:, self.active], relu, out, inplace=True)

    def backward(self, grads: Tensor, activation: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """δ θ_k = δ φ + Σ_s (δ A_sᵀ) H_s."""
        below = self._scaled(self.layer.backward(self.mix.anchor, grads))
        if not self.active.stop:
            return below if activation is None else relu_backward(below, activation, out)
        products = matmul_backward(grads, self.coefficients[:, self.active].mT)
        return matmul_backward(products, self.inputs[:, self.active], below, activation, out)

    def update(self, rows: Tensor, scaled_grads: Tensor) -> None:
        """Multiply the A held so far by q, and append H and A of this step."""
        buffer, place = self.next_buffer(rows.shape[1]), self._next_rows(rows.shape[1])
        for new, there in zip((rows, scaled_grads), buffer, strict=True):
            if new.data_ptr() != there.data_ptr():
                there.copy_(new)
        if self.mix.step.keeps_nothing:
            self.active = place
            return
        if self.active.stop:
            self.coefficients[:, self.active].mul_(self.mix.step.keep)
        self.active = slice(0, place.stop)

    def next_buffer(self, rows: int) -> Layer:
        """The rows after those in use; if only the last step counts, the other of the two buffers."""
        place = self._next_rows(rows)
        return Layer(self.inputs[:, place], self.coefficients[:, place])

    def write(self, out: Tensor) -> None:
        """Write (a + c) φ + Σ_s A_sᵀ H_s."""
        self.mix.write_mix(self.layer, out)
        add_change(out, self.change())

    def change(self) -> Layer:
        """The H and A in use: views (clients, active rows, inputs) and (clients, active rows, outputs)."""
        return Layer(self.inputs[:, self.active], self.coefficients[:, self.active])

    def _next_rows(self, rows: int) -> slice:
        """Which rows of the buffers the next step writes."""
        first = self.active.stop if self.active.stop + rows <= self.capacity else 0
        return slice(first, first + rows)

    def _scaled(self, outputs: Tensor) -> Tensor:
        """Products with the anchor φ, times its share a + c in the models; in place."""
        return outputs.mul_(self.mix.total_share) if self.mix.step.decays else outputs


class FixedInputLayer(LayerState):
    """Holds one matrix A, for a first layer whose inputs X are the same at every step."""

    def __init__(self, layer: LinearSlice, mix: AnchorMix, rows: Tensor):
        super().__init__(layer, mix)
        self.rows = rows  # X
        self.anchor_outputs = layer.forward(mix.anchor, rows)  # X φᵀ
        # X (a θ₀ + c φ)ᵀ, before any step X θ₀ᵀ
        self.outputs = self.anchor_outputs if mix.start is None else layer.forward(mix.start, rows)
        self.gram: Tensor | None = None  # X Xᵀ + 1, made when first needed
        self.coefficients: Tensor | None = None  # A; None before the first step

    def forward(self, rows: Tensor, relu: bool = False, out: Tensor | None = None) -> Tensor:
        """X θ_kᵀ = X (a θ₀ + c φ)ᵀ + (X Xᵀ + 1) A."""
        if self.coefficients is None:
            return relu_forward(self.outputs, out) if relu else self.outputs
        if self.gram is None:
            self.gram = torch.baddbmm(one_like(rows), rows, rows.mT)
        return matmul_add(self.outputs, self.gram, self.coefficients, relu, out)

    def backward(self, grads: Tensor, activation: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Never called: there is no layer below the first one."""
        raise NotImplementedError("there is no layer below the first one")

    def update(self, rows: Tensor, scaled_grads: Tensor) -> None:
        """A ← q A − η δ."""
        keep, pull = self.mix.step.keep, self.mix.step.pull
        if self.coefficients is None or self.mix.step.keeps_nothing:
            self.coefficients = scaled_grads
        elif isinstance(keep, Tensor):
            self.coefficients = torch.addcmul(scaled_grads, self.coefficients, keep)
        else:
            self.coefficients = torch.add(scaled_grads, self.coefficients, alpha=keep)
        if self.mix.start is not None or self.mix.step.decays:
            # a and c have changed; without a start and decay a + c = 1, and X φᵀ stays.
            self.outputs = keep * self.outputs + pull * self.anchor_outputs

    def write(self, out: Tensor) -> None:
        """Write a θ₀ + c φ + AᵀX."""
        self.mix.write_mix(self.layer, out)
        add_change(out, self._change())

    def change(self) -> Layer | None:
        """X and A, unless they are larger than four times the layer; a mean over clients is faster so."""
        held = self.rows.shape[1] * (self.layer.inputs + self.layer.outputs)
        return self._change() if held <= 4 * self.layer.inputs * self.layer.outputs else None

    def _change(self) -> Layer:
        """X (clients, rows, inputs) and A (clients, rows, outputs)."""
        assert self.coefficients is not None
        return Layer(self.rows, self.coefficients)


class LookaheadLayer:
    """A layer as it would be after one more update, which is not made: θ + AᵀH."""

    def __init__(self, state: LayerState, change: Layer):
        self.state = state
        self.change = change  # H and A of the update
        self.one = one_like(change.inputs)  # added to every product of inputs, for the bias

    def forward(self, rows: Tensor, relu: bool = False, out: Tensor | None = None) -> Tensor:
        """X θᵀ + (X Hᵀ + 1) A; see `LayerState.forward`."""
        gram = torch.baddbmm(self.one, rows, self.change.inputs.mT)
        outputs = self.state.forward(rows)
        return matmul_add(outputs, gram, self.change.coefficients, relu, out, inplace=True)

    def backward(self, grads: Tensor, activation: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """δ θ + (δ Aᵀ) H; see `LayerState.backward`."""
        products = matmul_backward(grads, self.change.coefficients.mT)
        return matmul_backward(products, self.change.inputs, self.state.backward(grads), activation, out)

    def next_buffer(self, rows: int) -> None:
        """None: what is computed ahead is not kept."""


def _copy_for_clients(values: Tensor, clients: int) -> Tensor:
    """Values (groups, ...) as (clients, ...), a copy for each client."""
    own = values.new_empty(clients, *values.shape[1:])
    own.view(values.shape[0], -1, *values.shape[1:]).copy_(values.unsqueeze(1))
    return own

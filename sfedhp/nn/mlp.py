"""Multilayer perceptrons stacked over clients: forward and backward pass written by hand.

Autograd over a stack copies arrays of d numbers several times a step. Written by hand, the layers are read
where they are in the flat vectors, clients that share a model share one matrix product, and every gradient is
written once.

Shapes in this module: models are `(groups, d)` and rows `(clients, rows, features)`. A group is a run of
consecutive clients that share a model, so `groups` divides `clients`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sfedhp.core.factored import Factored, Layer, add_change
from sfedhp.core.vectors import one_like
from sfedhp.nn.matmul import baddbmm, baddbmm_, relu_backward


class LinearSlice(NamedTuple):
    """The slice of a flat vector that holds a linear layer: weight (outputs, inputs), then bias (outputs)."""

    start: int
    inputs: int
    outputs: int

    @property
    def end(self) -> int:
        """Where the slice ends and the next layer begins."""
        return self.start + self.outputs * (self.inputs + 1)

    def part(self, flat: Tensor) -> Tensor:
        """A view of the layer's slice of flat vectors: (..., d) to (..., outputs · (inputs + 1))."""
        return flat[..., self.start : self.end]

    def weight(self, flat: Tensor) -> Tensor:
        """A view of the weight, (..., outputs, inputs)."""
        weight = flat[..., self.start : self.end - self.outputs]
        return weight.view(*flat.shape[:-1], self.outputs, self.inputs)

    def bias(self, flat: Tensor) -> Tensor:
        """A view of the bias, (..., 1, outputs)."""
        return flat[..., None, self.end - self.outputs : self.end]

    def forward(self, models: Tensor, rows: Tensor) -> Tensor:
        """x Wᵀ + b, (clients, rows, outputs), with one product for all clients of a group."""
        together = rows.reshape(models.shape[0], -1, self.inputs)
        outputs = baddbmm(self.bias(models), together, self.weight(models).mT)
        # Split by client again. The transposes keep a column-major result column-major.
        each = outputs.view(models.shape[0], -1, rows.shape[1], self.outputs)
        return each.mT.flatten(0, 1).mT

    def backward(self, models: Tensor, grads: Tensor) -> Tensor:
        """δ W: gradients of the inputs (clients, rows, inputs), given those of the outputs."""
        together = grads.reshape(models.shape[0], -1, self.outputs)
        return torch.bmm(together, self.weight(models)).view(*grads.shape[:-1], self.inputs)


Layers = tuple[LinearSlice, ...]


def match_mlp(module: nn.Module) -> tuple[Layers, bool]:
    """The layers of a module that consists of linear layers with ReLU between, and nothing else.

    Returns:
        The layers in order, and whether the module flattens its inputs first; `((), False)` for any other
        module, which is then run by autograd.
    """
    parts = flatten_sequential(module)
    flattens = bool(parts) and type(parts[0]) is nn.Flatten
    body = parts[1:] if flattens else parts
    alternates = all(type(part) is (nn.ReLU if index % 2 else nn.Linear) for index, part in enumerate(body))
    linear = [part for part in body if isinstance(part, nn.Linear) and part.bias is not None]
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    if not alternates or hooked or len(body) % 2 == 0 or len(linear) != (len(body) + 1) // 2:
        return (), False
    if isinstance(parts[0], nn.Flatten) and (parts[0].start_dim, parts[0].end_dim) != (1, -1):
        return (), False
    layers: list[LinearSlice] = []
    for part in linear:
        layers.append(LinearSlice(layers[-1].end if layers else 0, part.in_features, part.out_features))
    # A layer used twice is one set of weights in the flat vector, but was counted twice above.
    complete = layers[-1].end == sum(value.numel() for value in module.parameters())
    return (tuple(layers), flattens) if complete else ((), False)


def flatten_sequential(module: nn.Module) -> list[nn.Module]:
    """The modules that a (nested) `nn.Sequential` runs, in order; any other module is a list of one."""
    if type(module) is not nn.Sequential:
        return [module]
    return [part for child in module for part in flatten_sequential(child)]


def distinct_models(models: Tensor, lead: torch.Size) -> Tensor:
    """Models (..., d) of a stack of clients as (groups, d), one for each group of clients that share it.

    Sharing is read from the strides: where the trailing axes of the stack are expanded, nothing is copied.
    """
    wide = models.expand(*lead, models.shape[-1])
    axes = len(lead)
    while axes and (wide.stride(axes - 1) == 0 or lead[axes - 1] == 1):
        axes -= 1
    alone = wide[(slice(None),) * axes + (0,) * (len(lead) - axes)]
    return alone.reshape(-1, models.shape[-1])


class StackedModels(NamedTuple):
    """The models of a stack of clients: flat vectors, or an anchor and one change for each layer.

    With changes, layer i of a client is its anchor's layer plus AᵀH, where `layers[i]` holds the factors A
    and H; or it is `layers[i]` itself, where that is the client's own slice of the flat vector.
    """

    flat: Tensor  # (groups, d): the models, or their anchors
    layers: tuple[Layer | Tensor, ...] = ()  # (clients, ...) each; empty: `flat` are the models

    def forward(self, layer: LinearSlice, index: int, rows: Tensor) -> Tensor:
        """Outputs (clients, rows, outputs) of layer `index` for inputs (clients, rows, inputs)."""
        part = self.layers[index] if self.layers else None
        if isinstance(part, Tensor):
            return layer._replace(start=0).forward(part, rows)
        outputs = layer.forward(self.flat, rows)
        if isinstance(part, Layer):
            # X θᵀ = X φᵀ + (X Hᵀ + 1) A, the 1 for the bias
            gram = torch.baddbmm(one_like(rows), rows, part.inputs.mT)
            baddbmm_(outputs, gram, part.coefficients)
        return outputs

    def backward(self, layer: LinearSlice, index: int, grads: Tensor) -> Tensor:
        """Gradients (clients, rows, inputs) of a layer's inputs, given those of its outputs."""
        part = self.layers[index] if self.layers else None
        if isinstance(part, Tensor):
            return layer._replace(start=0).backward(part, grads)
        below = layer.backward(self.flat, grads)
        if isinstance(part, Layer):
            # δ θ = δ φ + (δ Aᵀ) H
            below.baddbmm_(torch.bmm(grads, part.coefficients.mT), part.inputs)
        return below


def stack_models(layers: Layers, model: Tensor | Factored, lead: torch.Size, rows: int) -> StackedModels:
    """Models (*lead, d) in the form that is read fastest, given how many rows each of them will see.

    A change that is cheaper to add to its anchor once than to multiply by all rows is added.
    """
    if not isinstance(model, Factored):
        return StackedModels(distinct_models(model, lead))
    anchors, clients, parts = distinct_models(model.anchor, lead), lead.numel(), []
    for layer, part in zip(layers, model.layers, strict=True):
        piece: Layer | Tensor
        if isinstance(part, Layer):
            piece = Layer(*(factor.reshape(clients, *factor.shape[len(lead) :]) for factor in part))
            fewer = min(rows, piece.inputs.shape[1])
            if fewer * (layer.inputs + layer.outputs) >= layer.inputs * layer.outputs:
                own = layer.part(anchors).unsqueeze(1).expand(-1, clients // anchors.shape[0], -1)
                piece = add_change(own.clone().view(clients, -1), piece)
        else:
            piece = part.reshape(clients, -1)
        parts.append(piece)
    return StackedModels(anchors, tuple(parts))


def forward(
    layers: Layers,
    models: StackedModels,
    rows: Tensor,
    drop: Callable[[Tensor, int], Tensor] | None = None,
) -> list[Tensor]:
    """The inputs of every layer, (clients, rows, inputs) each, then the scores (clients, rows, outputs).

    Args:
        layers: of the network.
        models: of the clients.
        rows: inputs of the first layer.
        drop: dropout, of the inputs of the layer with this number; None: nothing is dropped.
    """
    activations = [rows]
    for index, layer in enumerate(layers):
        if drop is not None:
            activations[-1] = drop(activations[-1], index)
        outputs = models.forward(layer, index, activations[-1])
        activations.append(outputs.relu_() if index < len(layers) - 1 else outputs)
    return activations


def gradient(
    layers: Layers, models: StackedModels, rows: Tensor, loss_grad: Callable[[Tensor], Tensor]
) -> Tensor:
    """Gradients (clients, d) of a loss, given its gradient with respect to the scores as a function."""
    *activations, scores = forward(layers, models, rows)
    grads = loss_grad(scores)
    flat = models.flat.new_empty(rows.shape[0], models.flat.shape[-1])
    for index in reversed(range(len(layers))):
        torch.bmm(grads.mT, activations[index], out=layers[index].weight(flat))
        torch.sum(grads, 1, keepdim=True, out=layers[index].bias(flat))
        if index:
            grads = relu_backward(models.backward(layers[index], index, grads), activations[index])
    return flat

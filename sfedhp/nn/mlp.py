"""Linear layers with ReLU between, stacked over clients: forward and backward by hand.

Autograd over a stack copies arrays of d numbers several times a step. Written out, the layers are read where
they lie in the flat vectors, clients that share a model share one matrix product, slopes are written once.
Here models are `(groups, d)` and rows `(clients, rows, features)`; a group is as many consecutive clients as
share a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sfedhp.core.factored import Factored, Layer, add_change
from sfedhp.core.types import Batch
from sfedhp.core.vectors import one_like
from sfedhp.nn.matmul import add_product, bend, columns_first, plus_product


class Affine(NamedTuple):
    """Where a linear layer lies in the flat vector: its weight (outputs, inputs), then its bias (outputs)."""

    first: int
    inputs: int
    outputs: int

    @property
    def last(self) -> int:
        """Where the next layer begins."""
        return self.first + self.outputs * (self.inputs + 1)

    def part(self, flat: Tensor) -> Tensor:
        """The layer's piece of flat vectors, (..., d) to (..., outputs · (inputs + 1)), as a view."""
        return flat[..., self.first : self.last]

    def weight(self, flat: Tensor) -> Tensor:
        """(..., outputs, inputs), as a view."""
        weight = flat[..., self.first : self.last - self.outputs]
        return weight.view(*flat.shape[:-1], self.outputs, self.inputs)

    def bias(self, flat: Tensor) -> Tensor:
        """(..., 1, outputs), as a view."""
        return flat[..., None, self.last - self.outputs : self.last]

    def forward(self, models: Tensor, rows: Tensor) -> Tensor:
        """What the layer makes of rows: x Wᵀ + b, one product for all clients of a group."""
        together = rows.reshape(models.shape[0], -1, self.inputs)
        outputs = plus_product(self.bias(models), together, self.weight(models).mT)
        # Each client's own again; where columns come first, they still do.
        each = outputs.view(models.shape[0], -1, rows.shape[1], self.outputs)
        return each.mT.flatten(0, 1).mT

    def backward(self, models: Tensor, slopes: Tensor) -> Tensor:
        """The slopes of the layer's inputs, given those of its outputs: δ W."""
        together = slopes.reshape(models.shape[0], -1, self.outputs)
        return torch.bmm(together, self.weight(models)).view(*slopes.shape[:-1], self.inputs)


Layers = tuple[Affine, ...]


def recognize(module: nn.Module) -> tuple[Layers, bool]:
    """The layers of a module that is linear layers with ReLU between, and whether it flattens its rows.

    Whatever else a module holds or does, there are no layers: it is then run as it stands.
    """
    parts = parts_of(module)
    flattens = bool(parts) and type(parts[0]) is nn.Flatten
    body = parts[1:] if flattens else parts
    plain = all(type(part) is (nn.ReLU if turn % 2 else nn.Linear) for turn, part in enumerate(body))
    linear = [part for part in body if isinstance(part, nn.Linear) and part.bias is not None]
    watched = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    if not plain or watched or len(body) % 2 == 0 or len(linear) != (len(body) + 1) // 2:
        return (), False
    if isinstance(parts[0], nn.Flatten) and (parts[0].start_dim, parts[0].end_dim) != (1, -1):
        return (), False
    layers: list[Affine] = []
    for part in linear:
        layers.append(Affine(layers[-1].last if layers else 0, part.in_features, part.out_features))
    # A layer that stands in two places is one set of weights, which the layers above would count twice.
    whole = layers[-1].last == sum(value.numel() for value in module.parameters())
    return (tuple(layers), flattens) if whole else ((), False)


def distinct_models(models: Tensor, lead: torch.Size) -> Tensor:
    """Models (..., d) of a stack of clients as (groups, d), without a copy where clients share them."""
    wide = models.expand(*lead, models.shape[-1])
    axes = len(lead)
    while axes and (wide.stride(axes - 1) == 0 or lead[axes - 1] == 1):
        axes -= 1
    alone = wide[(slice(None),) * axes + (0,) * (len(lead) - axes)]
    return alone.reshape(-1, models.shape[-1])


class CrossEntropy:
    """The slopes of a batch's mean cross-entropy with respect to the scores, times a factor.

    Rows that only pad a shorter client have no slope.
    """

    def __init__(
        self,
        batch: Batch,
        rows: Tensor,
        classes: int,
        factor: float | Tensor = 1.0,
        padded: bool = True,
    ):
        """Prepare what does not depend on the scores.

        Args:
            batch: of the whole stack.
            rows: the batch's inputs as (clients, rows, features).
            classes: how many.
            factor: of all slopes, or one for each client, (clients, 1, 1).
            padded: whether some rows may only pad a shorter client.
        """
        labels = batch.labels.reshape(*rows.shape[:2], 1)
        if columns_first(classes, rows.device):
            target = rows.new_zeros(rows.shape[0], classes, rows.shape[1]).mT
        else:
            target = rows.new_zeros(*rows.shape[:2], classes)
        self.weights: float | Tensor
        if padded:
            real = batch.real.reshape(rows.shape[:2])
            share = real.to(rows.dtype) / real.sum(-1, keepdim=True).clamp_min(1)
            self.weights = share.unsqueeze(-1) * factor
        else:
            self.weights = factor / rows.shape[1]
        if isinstance(self.weights, Tensor):
            self.target = target.scatter_(-1, labels, -self.weights.expand(labels.shape))
        else:
            self.target = target.scatter_(-1, labels, -self.weights)

    def __call__(self, scores: Tensor) -> Tensor:
        """w (softmax(z) − y)."""
        if isinstance(self.weights, Tensor):
            return torch.addcmul(self.target, _softmax(scores), self.weights)
        return torch.add(self.target, _softmax(scores), alpha=self.weights)


class Models(NamedTuple):
    """The models of a stack of clients: built, or changes of anchors layer by layer."""

    flat: Tensor  # (groups, d), or the anchors
    parts: tuple[Layer | Tensor, ...] = ()  # each layer's change, or its own piece, (clients, ...)

    def forward(self, layer: Affine, turn: int, rows: Tensor) -> Tensor:
        """What a layer makes of rows."""
        part = self.parts[turn] if self.parts else None
        if isinstance(part, Tensor):
            return layer._replace(first=0).forward(part, rows)
        outputs = layer.forward(self.flat, rows)
        if isinstance(part, Layer):
            # X θ = X φ + (X Hᵀ) A, and a one in every product of inputs for the bias
            gram = torch.baddbmm(one_like(rows), rows, part.inputs.mT)
            add_product(outputs, gram, part.coefficients)
        return outputs

    def backward(self, layer: Affine, turn: int, slopes: Tensor) -> Tensor:
        """The slopes of a layer's inputs, given those of its outputs."""
        part = self.parts[turn] if self.parts else None
        if isinstance(part, Tensor):
            return layer._replace(first=0).backward(part, slopes)
        below = layer.backward(self.flat, slopes)
        if isinstance(part, Layer):
            # δ θᵀ = δ φᵀ + (δ Aᵀ) H
            below.baddbmm_(torch.bmm(slopes, part.coefficients.mT), part.inputs)
        return below


def stacked(layers: Layers, model: Tensor | Factored, lead: torch.Size, rows: int) -> Models:
    """Models (*lead, d) as they are read fastest, given how many rows each of them will see."""
    if not isinstance(model, Factored):
        return Models(distinct_models(model, lead))
    anchors, clients, parts = distinct_models(model.anchor, lead), lead.numel(), []
    for layer, part in zip(layers, model.layers, strict=True):
        piece: Layer | Tensor
        if isinstance(part, Layer):
            piece = Layer(*(factor.reshape(clients, *factor.shape[len(lead) :]) for factor in part))
            min_rows = min(rows, piece.inputs.shape[1])
            if min_rows * (layer.inputs + layer.outputs) >= layer.inputs * layer.outputs:
                own = layer.part(anchors).unsqueeze(1).expand(-1, clients // anchors.shape[0], -1)
                piece = add_change(own.clone().view(clients, -1), piece)
        else:
            piece = part.reshape(clients, -1)
        parts.append(piece)
    return Models(anchors, tuple(parts))


def ascend(layers: Layers, models: Models, rows: Tensor) -> list[Tensor]:
    """The inputs of every layer, then the scores."""
    heights = [rows]
    for turn, layer in enumerate(layers):
        outputs = models.forward(layer, turn, heights[-1])
        heights.append(outputs.relu_() if turn < len(layers) - 1 else outputs)
    return heights


def gradient(layers: Layers, models: Models, rows: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradients (clients, d) of a loss whose slopes with respect to the scores are `slope(scores)`."""
    *heights, outputs = ascend(layers, models, rows)
    slopes = slope(outputs)
    flat = models.flat.new_empty(rows.shape[0], models.flat.shape[-1])
    for turn in reversed(range(len(layers))):
        torch.bmm(slopes.mT, heights[turn], out=layers[turn].weight(flat))
        torch.sum(slopes, 1, keepdim=True, out=layers[turn].bias(flat))
        if turn:
            slopes = bend(models.backward(layers[turn], turn, slopes), heights[turn])
    return flat


def _softmax(scores: Tensor) -> Tensor:
    """Over the last axis. A CPU is several times faster at few classes where they come first."""
    if scores.device.type != "cpu":
        return torch.softmax(scores, -1)
    return torch.softmax(scores.mT, -2).mT


def parts_of(module: nn.Module) -> list[nn.Module]:
    """The modules that run one after the other, in that order."""
    if type(module) is not nn.Sequential:
        return [module]
    return [part for child in module for part in parts_of(child)]

"""Models near a common anchor that stay factored, layer by layer, instead of being built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """A linear layer's change, kept as two factors: AᵀH of the weight, the sum of A's rows of the bias."""

    inputs: Tensor  # H (..., rows, in): what the layer was given
    coefficients: Tensor  # A (..., rows, out)

    @property
    def size(self) -> int:
        """How many numbers of the flat vector it stands for."""
        return self.coefficients.shape[-1] * (self.inputs.shape[-1] + 1)


class Factored(NamedTuple):
    """Models near a common anchor that are never built, layer by layer.

    The layers stand in the flat vector's order, each as weight (out, in) and bias (out). A layer that had to
    be built is there as its own piece of the flat vector, (..., members, size).
    """

    anchor: Tensor  # (..., members, d), or (..., 1, d) where all members share it; (d,) for a model alone
    layers: tuple[Layer | Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        """The shape of the models if they were built."""
        first = self.layers[0]
        lead = first.coefficients.shape[:-2] if isinstance(first, Layer) else first.shape[:-1]
        return torch.Size([*lead, self.anchor.shape[-1]])


def dense(model: Tensor | Factored) -> Tensor:
    """The model as a flat vector."""
    if not isinstance(model, Factored):
        return model
    built = model.anchor.expand(model.shape).clone(memory_format=torch.contiguous_format)
    for layer, part in pieces_of(model.layers, built):
        if isinstance(layer, Layer):
            add_change(part, layer)
        else:
            part.copy_(layer)
    return built


def placed(whole: Any, part: Any, axis: int, first: int, total: int, shared: bool = True) -> Any:
    """The state of all members with that of some consecutive ones written where it belongs.

    So the pieces of a large federation are never there twice. Models that share an anchor stay factored.

    Args:
        whole: what was written before; None at the first piece.
        part: the next piece: a model, or tuples of such.
        axis: along which members lie.
        first: the number of the piece's first member.
        total: how many members there will be.
        shared: whether members along this axis may share an anchor; if not, each has its own.
    """
    if isinstance(part, Factored) and not shared and not isinstance(whole, Tensor):
        before = (None, None) if whole is None else whole
        return Factored(*(placed(*pair, axis, first, total) for pair in zip(before, part, strict=True)))
    if isinstance(part, Factored) and part.anchor.shape[axis] == 1:
        if whole is None:
            return Factored(part.anchor, placed(None, part.layers, axis, first, total))
        if isinstance(whole, Factored) and part.anchor.data_ptr() == whole.anchor.data_ptr():
            return Factored(part.anchor, placed(whole.layers, part.layers, axis, first, total))
    whole, part = (dense(each) if isinstance(each, Factored) else each for each in (whole, part))
    if isinstance(part, Tensor):
        if whole is None:
            whole = part.new_empty(*part.shape[:axis], total, *part.shape[axis + 1 :])
        whole.narrow(axis, first, part.shape[axis]).copy_(part)
        return whole
    before = [None] * len(part) if whole is None else whole
    parts = [placed(old, new, axis, first, total, shared) for old, new in zip(before, part, strict=True)]
    return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)


def pieces_of(layers: tuple[Layer | Tensor, ...], flat: Tensor) -> Iterator[tuple[Layer | Tensor, Tensor]]:
    """Every layer with its piece of flat vectors, as a view."""
    first = 0
    for layer in layers:
        size = layer.size if isinstance(layer, Layer) else layer.shape[-1]
        yield layer, flat[..., first : first + size]
        first += size


def add_change(part: Tensor, change: Layer) -> Tensor:
    """Add a change to a layer's piece (..., size) of flat vectors, in place."""
    inputs, coefficients = (factor.reshape(-1, *factor.shape[-2:]) for factor in change)
    flat, width = part.view(-1, part.shape[-1]), coefficients.shape[-1]
    weight = flat[:, :-width].view(len(flat), width, inputs.shape[-1])
    weight.baddbmm_(coefficients.mT, inputs)
    flat[:, -width:].add_(coefficients.sum(-2))
    return part

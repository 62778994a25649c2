"""Models as an anchor and a low-rank change of each layer, and states that may hold such models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from sfedhp.core.types import tuple_like

Tree = TypeVar("Tree")


class Layer(NamedTuple):
    """A linear layer's change as two factors: AᵀH for the weight, the sum of A's rows for the bias."""

    inputs: Tensor  # H (..., rows, in), the layer's inputs
    coefficients: Tensor  # A (..., rows, out)

    @property
    def size(self) -> int:
        """The number of weights and biases of the layer."""
        return self.coefficients.shape[-1] * (self.inputs.shape[-1] + 1)


class Factored(NamedTuple):
    """Models that differ from an anchor by a low-rank change of each layer.

    The layers are in the order of the flat vector, each with weight (out, in) and bias (out). A layer whose
    change is not of low rank is stored as its own part of the flat vector, (..., members, size).
    """

    anchor: Tensor  # (..., members, d), or (..., 1, d) where all members share it; (d,) for a model alone
    layers: tuple[Layer | Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        """The shape of the models as flat vectors."""
        first = self.layers[0]
        lead = first.coefficients.shape[:-2] if isinstance(first, Layer) else first.shape[:-1]
        return torch.Size([*lead, self.anchor.shape[-1]])


def dense(model: Tensor | Factored) -> Tensor:
    """The model as a flat vector (..., d)."""
    if not isinstance(model, Factored):
        return model
    built = model.anchor.expand(model.shape).clone(memory_format=torch.contiguous_format)
    for layer, part in with_parts(model.layers, built):
        if isinstance(layer, Layer):
            add_change(part, layer)
        else:
            part.copy_(layer)
    return built


class SliceWriter(Generic[Tree]):
    """The state of all members, written slice by slice, so that it is never in memory twice.

    A state is a model (a tensor or `Factored`), or a tuple of states. Factored models stay factored while
    their slices go together; otherwise they are built.
    """

    def __init__(self, axis: int, total: int, shared_anchors: bool = True):
        """Prepare to write slices.

        Args:
            axis: the axis of members.
            total: how many members there will be.
            shared_anchors: whether members along this axis may share an anchor; if not, each has its own.
        """
        self._axis, self._total, self._shared_anchors = axis, total, shared_anchors
        self._whole: Any = None  # in the form of the slices; None: nothing is written

    @property
    def value(self) -> Tree:
        """The state of all members, once every slice is written."""
        whole: Tree = self._whole
        return whole

    def write(self, part: Tree, first: int) -> None:
        """Write a slice of some consecutive members; `first` is the number of its first member."""
        self._whole = self._state(self._whole, part, first)

    def _state(self, whole: Any, part: Any, first: int) -> Any:
        """The whole with a part written into it, of any form."""
        if isinstance(part, Factored) or isinstance(whole, Factored):
            return self._models(whole, part, first)
        if isinstance(part, Tensor):
            return self._rows(whole, part, first)
        return self._tuple(whole, part, first)

    def _models(self, whole: Any, part: Tensor | Factored, first: int) -> Tensor | Factored:
        """Models of which some are factored; they stay so if all are, around one anchor or one each."""
        if isinstance(part, Factored) and not isinstance(whole, Tensor):
            anchor, layers = (None, None) if whole is None else whole
            if not self._shared_anchors:
                anchors = self._rows(self._widened(anchor, part.anchor), part.anchor, first)
                return Factored(anchors, self._tuple(layers, part.layers, first))
            one_anchor = part.anchor.shape[self._axis] == 1
            if one_anchor and (anchor is None or anchor.data_ptr() == part.anchor.data_ptr()):
                return Factored(part.anchor, self._tuple(layers, part.layers, first))
        return self._rows(None if whole is None else dense(whole), dense(part), first)

    def _widened(self, anchors: Tensor | None, part: Tensor) -> Tensor | None:
        """The anchors so far, repeated where members of a slice share one and those of `part` do not."""
        if anchors is None:
            return None
        shape = [max(pair) for pair in zip(anchors.shape, part.shape, strict=True)]
        shape[self._axis] = self._total
        return anchors if list(anchors.shape) == shape else anchors.expand(shape).contiguous()

    def _rows(self, whole: Tensor | None, part: Tensor, first: int) -> Tensor:
        """A tensor: the slice is copied to its place."""
        axis, shape = self._axis, part.shape
        if whole is None:
            whole = part.new_empty(*shape[:axis], self._total, *shape[axis + 1 :])
        whole.narrow(axis, first, shape[axis]).copy_(part)
        return whole

    def _tuple(self, whole: Any, part: Any, first: int) -> Any:
        """A tuple: part by part."""
        wholes = [None] * len(part) if whole is None else whole
        written = [self._state(old, new, first) for old, new in zip(wholes, part, strict=True)]
        return tuple_like(part, written)


def with_parts(layers: tuple[Layer | Tensor, ...], flat: Tensor) -> Iterator[tuple[Layer | Tensor, Tensor]]:
    """Every layer with its part of flat vectors, as a view."""
    first = 0
    for layer in layers:
        size = layer.size if isinstance(layer, Layer) else layer.shape[-1]
        yield layer, flat[..., first : first + size]
        first += size


def add_change(part: Tensor, change: Layer) -> Tensor:
    """Add a change to a layer's part (..., size) of flat vectors, in place."""
    inputs, coefficients = (factor.reshape(-1, *factor.shape[-2:]) for factor in change)
    flat, width = part.view(-1, part.shape[-1]), coefficients.shape[-1]
    weight = flat[:, :-width].view(len(flat), width, inputs.shape[-1])
    weight.baddbmm_(coefficients.mT, inputs)
    flat[:, -width:].add_(coefficients.sum(-2))
    return part

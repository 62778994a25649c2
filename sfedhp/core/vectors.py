"""Flat models as vectors: spreading, averaging, sparsity, and models that stay factored.

A model is `(..., d)`, uploads are `(..., members, d)`, weights `(..., members)`. The leading axes are a stack
of runs, edges or clients in the simulator, and absent on a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from sfedhp.core.scalars import PerRun, Scalar

Tree = TypeVar("Tree")


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
    for layer, part in _pieces(model.layers, built):
        if isinstance(layer, Layer):
            add_change(part, layer)
        else:
            part.copy_(layer)
    return built


@lru_cache(maxsize=64)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number on a device, made once: on a GPU even filling one cell is a kernel that a round waits for."""
    return torch.full((), value, dtype=dtype, device=device)


def one_like(values: Tensor) -> Tensor:
    """The number 1 as (1, 1, 1), to be added to every product of a batch."""
    return constant(1.0, values.dtype, values.device).view(1, 1, 1)


def spread(model: Tensor, members: int) -> Tensor:
    """The same model to every member: (..., d) to (..., members, d), without a copy."""
    return model.unsqueeze(-2).expand(*model.shape[:-1], members, model.shape[-1])


def weighted_mean(uploads: Tensor | Factored, weights: Tensor) -> Tensor:
    """The mean over the members axis. Of a member of weight zero nothing is read, not even NaN."""
    total = weights.sum(-1, keepdim=True)
    shares = weights / total.clamp_min(torch.finfo(weights.dtype).tiny)
    return _mean(uploads, shares, _all_of(shares > 0))


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


def toward(model: Tensor, goal: Tensor, share: Scalar) -> Tensor:
    """x + share · (goal − x): a step of that share of the way, in one pass over the vectors."""
    weight = share.like(model) if isinstance(share, PerRun) else share
    return torch.lerp(model, goal, weight)


def smooth_l1(model: Tensor, smoothing: Scalar) -> Tensor:
    """φ_ρ(x) = ρ Σ log cosh(x/ρ), over the last axis."""
    # log cosh y = |y| + log(1 + e^(−2|y|)) − log 2 stays finite where cosh itself overflows.
    size = (model / smoothing).abs()
    return (smoothing * (size + torch.log1p(torch.exp(-2 * size)) - math.log(2))).sum(-1)


def smooth_l1_slope(model: Tensor, smoothing: Scalar | Tensor) -> Tensor:
    """∇φ_ρ(x) = tanh(x/ρ)."""
    # tanh y = 2 σ(2y) − 1, of which a CPU makes three in the time of one tanh.
    return torch.sigmoid_(2 / smoothing * model).mul_(2).sub_(1)


def soft_threshold(model: Tensor, threshold: Scalar | Tensor) -> Tensor:
    """The proximal step of threshold·‖x‖₁: shrink every weight, and leave true zeros."""
    return torch.sign(model) * (model.abs() - threshold).clamp_min(0.0)


def density(model: Tensor, threshold: float) -> Tensor:
    """The share (...) of weights that are neither zero nor smaller than the threshold."""
    kept = model.abs() >= threshold if threshold > 0 else model != 0
    return kept.to(model.dtype).mean(-1)


def tree_map(function: Callable[..., Any], tree: Tree, *others: Any) -> Tree:
    """Apply a function to the tensors of a state: a tensor, or tuples of states."""
    if isinstance(tree, tuple):
        parts = [tree_map(function, *each) for each in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    result: Tree = function(tree, *others)
    return result


def keep(took: Tensor, new: Tree, old: Tree) -> Tree:
    """Rows (...) of the stack where nothing happened keep what they had."""
    if _all_of(took):
        return new
    if isinstance(new, Factored) != isinstance(old, Factored):
        new, old = _built(new), _built(old)

    def choose(fresh: Tensor, before: Tensor) -> Tensor:
        return torch.where(took.reshape(*took.shape, *(1,) * (fresh.ndim - took.ndim)), fresh, before)

    return tree_map(choose, new, old)


def _built(tree: Any) -> Any:
    return dense(tree) if isinstance(tree, Factored) else tree


def _all_of(mask: Tensor) -> bool:
    """Whether all are known to be True. Asking a device would wait for it, so there it is not known."""
    return mask.device.type == "cpu" and bool(mask.all())


def _mean(uploads: Tensor | Factored, shares: Tensor, everybody: bool) -> Tensor:
    """Σ share · upload over the members axis, where `everybody` says that no share is zero."""
    if not isinstance(uploads, Factored):
        kept = uploads if everybody else torch.where(shares.unsqueeze(-1) > 0, uploads, 0.0)
        return (shares.to(kept.dtype).unsqueeze(-2) @ kept).squeeze(-2)
    if uploads.anchor.shape[-2] == 1:
        center = uploads.anchor.squeeze(-2).clone(memory_format=torch.contiguous_format)
    else:
        center = _mean(uploads.anchor, shares, everybody)
    each = shares[..., None, None].to(center.dtype)
    for layer, part in _pieces(uploads.layers, center):
        if not isinstance(layer, Layer):
            part.copy_(_mean(layer, shares, everybody))
            continue
        inputs, coefficients = layer.inputs, layer.coefficients * each
        if not everybody:
            # Both factors are masked, for 0 · NaN is NaN.
            inputs, coefficients = (torch.where(each > 0, factor, 0.0) for factor in (inputs, coefficients))
        # Members lie side by side as rows: one product a layer.
        add_change(part, Layer(inputs.flatten(-3, -2), coefficients.flatten(-3, -2)))
    return center


def _pieces(layers: tuple[Layer | Tensor, ...], flat: Tensor) -> Iterator[tuple[Layer | Tensor, Tensor]]:
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

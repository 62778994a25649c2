"""Arithmetic of models as flat vectors: spreading, averaging, sparsity.

A model is `(..., d)`, uploads are `(..., members, d)`, weights `(..., members)`. The leading axes are a stack
of runs, edges or clients in the simulator, and absent on a device.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from sfedhp.core.factored import Factored, Layer, add_change, with_parts
from sfedhp.core.scalars import PerRun, Scalar
from sfedhp.core.trees import known_all_true


@lru_cache(maxsize=64)
def constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a 0-dim tensor, made once: on a GPU even that is a kernel launch."""
    return torch.full((), value, dtype=dtype, device=device)


def one_like(values: Tensor) -> Tensor:
    """The number 1 as a tensor (1, 1, 1) of the same dtype and device."""
    return constant(1.0, values.dtype, values.device).view(1, 1, 1)


def spread(model: Tensor, members: int) -> Tensor:
    """The same model to every member: (..., d) to (..., members, d), without a copy."""
    return model.unsqueeze(-2).expand(*model.shape[:-1], members, model.shape[-1])


def weighted_mean(uploads: Tensor | Factored, weights: Tensor) -> Tensor:
    """The mean over the members axis. Of a member of weight zero nothing is read, not even NaN."""
    total = weights.sum(-1, keepdim=True)
    shares = weights / total.clamp_min(torch.finfo(weights.dtype).tiny)
    return _mean(uploads, shares, known_all_true(shares > 0))


def toward(model: Tensor, goal: Tensor, share: Scalar | Tensor) -> Tensor:
    """x + share · (goal − x), in one pass over the vectors."""
    weight = share.like(model) if isinstance(share, PerRun) else share
    if isinstance(weight, Tensor):
        weight = weight.to(model.dtype)
    return torch.lerp(model, goal, weight)


def smooth_l1(model: Tensor, smoothing: Scalar) -> Tensor:
    """φ_ρ(x) = ρ Σ log cosh(x/ρ), over the last axis."""
    # log cosh y = |y| + log(1 + e^(−2|y|)) − log 2 stays finite where cosh itself overflows.
    size = (model / smoothing).abs()
    return (smoothing * (size + torch.log1p(torch.exp(-2 * size)) - math.log(2))).sum(-1)


def smooth_l1_grad(model: Tensor, smoothing: Scalar | Tensor) -> Tensor:
    """The gradient of `smooth_l1`: ∇φ_ρ(x) = tanh(x/ρ), for each element."""
    # tanh y = 2 σ(2y) − 1; a CPU computes three sigmoids in the time of one tanh.
    return torch.sigmoid_(2 / smoothing * model).mul_(2).sub_(1)


def soft_threshold(model: Tensor, threshold: Scalar | Tensor) -> Tensor:
    """The proximal step of threshold·‖x‖₁: shrink every weight, and leave true zeros."""
    return torch.sign(model) * (model.abs() - threshold).clamp_min(0.0)


def density(model: Tensor, threshold: float) -> Tensor:
    """The share (...) of weights that are neither zero nor smaller than the threshold."""
    kept = model.abs() >= threshold if threshold > 0 else model != 0
    return kept.to(model.dtype).mean(-1)


def _mean(uploads: Tensor | Factored, shares: Tensor, all_count: bool) -> Tensor:
    """Σ share · upload over the members axis; `all_count`: no share is zero."""
    if not isinstance(uploads, Factored):
        kept = uploads if all_count else torch.where(shares.unsqueeze(-1) > 0, uploads, 0.0)
        return (shares.to(kept.dtype).unsqueeze(-2) @ kept).squeeze(-2)
    if uploads.anchor.shape[-2] == 1:
        center = uploads.anchor.squeeze(-2).clone(memory_format=torch.contiguous_format)
    else:
        center = _mean(uploads.anchor, shares, all_count)
    each = shares[..., None, None].to(center.dtype)
    for layer, part in with_parts(uploads.layers, center):
        if not isinstance(layer, Layer):
            part.copy_(_mean(layer, shares, all_count))
            continue
        inputs, coefficients = layer.inputs, layer.coefficients * each
        if not all_count:
            # Both factors are masked, because 0 · NaN is NaN.
            inputs, coefficients = (torch.where(each > 0, factor, 0.0) for factor in (inputs, coefficients))
        # The rows of all members are one long matrix: one product for each layer.
        add_change(part, Layer(inputs.flatten(-3, -2), coefficients.flatten(-3, -2)))
    return center

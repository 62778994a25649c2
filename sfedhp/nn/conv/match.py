"""Which modules are convolutional networks with a forward and backward pass written by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import nn

from sfedhp.nn.conv.block import Block
from sfedhp.nn.conv.convolve import HALVES, Window
from sfedhp.nn.conv.network import ConvNet
from sfedhp.nn.conv.norm import Norm
from sfedhp.nn.mlp import Layers, flatten_sequential, match_mlp


def match_convnet(module: nn.Module) -> ConvNet | None:
    """The `ConvNet` of a module that consists of blocks, a flattening and linear layers, and nothing else.

    Returns:
        None for any other module, which is then run by autograd.
    """
    parts, blocks, momenta = flatten_sequential(module), list[Block](), set[float]()
    unflatten = _pop(parts, nn.Unflatten)
    start = statistics_start = 0
    while parts and type(parts[0]) is nn.Conv2d:
        convolution, norm = parts.pop(0), _pop(parts, nn.BatchNorm2d, nn.GroupNorm)
        pooling, relu = _pop(parts, nn.MaxPool2d), _pop(parts, nn.ReLU)  # in either order
        pooling, dropout = pooling or _pop(parts, nn.MaxPool2d), _pop(parts, nn.Dropout)
        window = _window(convolution)
        pools = _window(pooling) if pooling else HALVES
        if not (window and pools and relu and _norm_fits(norm) and _dropout_fits(dropout)):
            return None
        assert isinstance(convolution, nn.Conv2d)
        biased, outputs = convolution.bias is not None, convolution.out_channels
        after = start + convolution.weight.numel() + outputs * biased
        place = _norm(norm, after, statistics_start)
        last = convolution.in_channels, outputs, biased, place, pooling is not None, window, pools
        blocks.append(Block(start, *last, _probability(dropout)))
        start = after + (2 * outputs if place else 0)
        if isinstance(norm, nn.BatchNorm2d):
            statistics_start += 2 * outputs
            momenta.add(norm.momentum or 0.0)
    flatten, dropout = _pop(parts, nn.Flatten), _pop(parts, nn.Dropout)
    if blocks and _probability(dropout):
        if blocks[-1].dropout or not _dropout_fits(dropout):
            return None
        blocks[-1] = blocks[-1]._replace(dropout=_probability(dropout))
    drops = _pop_drops(parts)
    head, end = _head(parts, start)
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    chained = all(block.inputs == below.outputs for below, block in pairwise(blocks))
    # A part used twice is one set of weights in the flat vector, but was counted twice above.
    complete = end == sum(value.numel() for value in module.parameters())
    fits = blocks and _flatten_fits(flatten) and _unflatten_fits(unflatten) and complete and chained
    if not fits or hooked or len(momenta) > 1 or drops is None:
        return None
    return ConvNet(tuple(blocks), head, next(iter(momenta), 0.0), drops, unflatten is not None)


def _pop(parts: list[nn.Module], *kinds: type[nn.Module]) -> nn.Module | None:
    """The next part, removed from the list, if it is exactly of one of these classes; None otherwise."""
    return parts.pop(0) if parts and type(parts[0]) in kinds else None


def _window(part: nn.Module) -> Window | None:
    """The window of a convolution or a pooling; None if it has settings that the passes do not support."""
    if isinstance(part, nn.Conv2d):
        fits = part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)
    else:
        assert isinstance(part, nn.MaxPool2d)
        fits = not part.ceil_mode and not part.return_indices
    if not fits or _pair(part.dilation) != (1, 1):
        return None
    return Window(_pair(part.kernel_size), _pair(part.stride), _pair(part.padding))


def _pair(value: Any) -> tuple[int, int]:
    """A size of both axes, as torch's modules hold it."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _probability(part: nn.Module | None) -> float:
    """The drop probability of a dropout; 0 if there is none."""
    return part.p if isinstance(part, nn.Dropout) else 0.0


def _dropout_fits(part: nn.Module | None) -> bool:
    """Whether the drop probability of a dropout is below 1."""
    return _probability(part) < 1


def _pop_drops(parts: list[nn.Module]) -> tuple[float, ...] | None:
    """The dropout before each linear layer, removed from the list; None if one is elsewhere.

    The passes support dropout only after a ReLU.
    """
    drops, kept = list[float](), list[nn.Module]()
    waiting = 0.0
    for part in parts:
        if type(part) is nn.Dropout:
            if waiting or not kept or type(kept[-1]) is not nn.ReLU or not _dropout_fits(part):
                return None
            waiting = _probability(part)
        else:
            kept.append(part)
            if type(part) is nn.Linear:
                drops.append(waiting)
                waiting = 0.0
    parts[:] = kept
    return None if waiting else tuple(drops)


def _norm_fits(part: nn.Module | None) -> bool:
    """Whether the norm has a gain and an offset and, if a batch norm, running statistics; or is absent."""
    if isinstance(part, nn.BatchNorm2d):
        return part.affine and part.track_running_stats
    return part is None or bool(part.affine)


def _flatten_fits(part: nn.Module | None) -> bool:
    """Whether there is a flattening, and it flattens all axes but the first."""
    return isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) == (1, -1)


def _unflatten_fits(part: nn.Module | None) -> bool:
    """Whether an unflattening gives images of (height, width) their channel; or there is none."""
    if not isinstance(part, nn.Unflatten):
        return True
    return part.dim == 1 and len(part.unflattened_size) == 2 and part.unflattened_size[0] == 1


def _norm(part: nn.Module | None, start: int, statistics_start: int) -> Norm | None:
    """The norm with its places in the flat vector and in the statistics; None if there is none."""
    if isinstance(part, nn.BatchNorm2d):
        return Norm(start, part.num_features, part.eps, groups=0, statistics_start=statistics_start)
    if isinstance(part, nn.GroupNorm):
        return Norm(start, part.num_channels, part.eps, groups=part.num_groups)
    return None


def _head(parts: list[nn.Module], start: int) -> tuple[Layers, int]:
    """The linear layers, and where the flat vector ends; −1 if the parts are anything else."""
    if not parts:
        return (), start
    layers, flattens = match_mlp(nn.Sequential(*parts))
    if not layers or flattens:
        return (), -1
    moved = tuple(layer._replace(start=start + layer.start) for layer in layers)
    return moved, moved[-1].end

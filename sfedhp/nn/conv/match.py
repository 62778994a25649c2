"""Which modules are convolutional networks that can be worked by hand."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from sfedhp.nn import mlp as perceptron
from sfedhp.nn.conv.block import Block
from sfedhp.nn.conv.network import Convolutions
from sfedhp.nn.conv.norm import Norm
from sfedhp.nn.mlp import Layers, parts_of

_FILTERS = {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 1}
_POOLING = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}


def recognize(module: nn.Module) -> Convolutions | None:
    """The network of a module that is blocks, a flattening, then linear layers with ReLU between, or none.

    Whatever else a module holds or does, there is no such network: it is then run as it stands.
    """
    parts, blocks, momenta = parts_of(module), list[Block](), set[float]()
    first = worn = 0
    while parts and type(parts[0]) is nn.Conv2d:
        filters, norm = parts.pop(0), _next(parts, nn.BatchNorm2d, nn.GroupNorm)
        bends, pooling = _next(parts, nn.ReLU), _next(parts, nn.MaxPool2d)
        if not (_convolves(filters) and bends and _normalizes(norm) and _pools(pooling)):
            return None
        assert isinstance(filters, nn.Conv2d)
        biased, outputs = filters.bias is not None, filters.out_channels
        after = first + filters.weight.numel() + outputs * biased
        place = _norm(norm, after, worn)
        blocks.append(Block(first, filters.in_channels, outputs, biased, place, pooling is not None))
        first = after + (2 * outputs if place else 0)
        if isinstance(norm, nn.BatchNorm2d):
            worn += 2 * outputs
            momenta.add(norm.momentum or 0.0)
    flatten = _next(parts, nn.Flatten)
    head, last = _head(parts, first)
    watched = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    chained = all(block.inputs == below.outputs for below, block in pairwise(blocks))
    # A part that stands in two places is one set of weights, which would be counted twice.
    whole = last == sum(value.numel() for value in module.parameters())
    if not (blocks and _flattens(flatten) and whole and chained) or watched or len(momenta) > 1:
        return None
    return Convolutions(tuple(blocks), head, next(iter(momenta), 0.0))


def _next(parts: list[nn.Module], *kinds: type[nn.Module]) -> nn.Module | None:
    """The next part, taken off if it is exactly of one of these kinds."""
    return parts.pop(0) if parts and type(parts[0]) in kinds else None


def _convolves(part: nn.Module) -> bool:
    """Whether it is a convolution of 3 × 3 with zeros around, which keeps the size."""
    assert isinstance(part, nn.Conv2d)
    return _has(part, _FILTERS) and part.groups == 1 and part.padding_mode == "zeros"


def _pools(part: nn.Module | None) -> bool:
    """Whether it is pooling by 2 × 2, or nothing."""
    if not isinstance(part, nn.MaxPool2d):
        return True
    return _has(part, _POOLING) and not part.ceil_mode and not part.return_indices


def _normalizes(part: nn.Module | None) -> bool:
    """Whether it is a norm with weights and, if it is of batches, running statistics; or nothing."""
    if isinstance(part, nn.BatchNorm2d):
        return part.affine and part.track_running_stats
    return part is None or bool(part.affine)


def _flattens(part: nn.Module | None) -> bool:
    return isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) == (1, -1)


def _norm(part: nn.Module | None, first: int, worn: int) -> Norm | None:
    if isinstance(part, nn.BatchNorm2d):
        return Norm(first, part.num_features, part.eps, groups=0, worn=worn)
    if isinstance(part, nn.GroupNorm):
        return Norm(first, part.num_channels, part.eps, groups=part.num_groups)
    return None


def _head(parts: list[nn.Module], first: int) -> tuple[Layers, int]:
    """The linear layers, and where the flat vector ends; somewhere impossible if there is anything else."""
    if not parts:
        return (), first
    layers, flattens = perceptron.recognize(nn.Sequential(*parts))
    if not layers or flattens:
        return (), -1
    moved = tuple(layer._replace(first=first + layer.first) for layer in layers)
    return moved, moved[-1].last


def _has(part: nn.Module, wanted: dict[str, int]) -> bool:
    """Whether each of these attributes is this number, or it twice."""
    return all(getattr(part, name) in (value, (value, value)) for name, value in wanted.items())

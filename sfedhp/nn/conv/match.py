"""Which modules are convolutional networks with a forward and backward pass written by hand."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from sfedhp.nn.conv.block import Block
from sfedhp.nn.conv.network import ConvNet
from sfedhp.nn.conv.norm import Norm
from sfedhp.nn.mlp import Layers, flatten_sequential, match_mlp

_CONVOLUTION = {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 1}
_POOLING = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}


def match_convnet(module: nn.Module) -> ConvNet | None:
    """The `ConvNet` of a module that consists of blocks, a flattening and linear layers, and nothing else.

    Returns:
        None for any other module, which is then run by autograd.
    """
    parts, blocks, momenta = flatten_sequential(module), list[Block](), set[float]()
    start = statistics_start = 0
    while parts and type(parts[0]) is nn.Conv2d:
        convolution, norm = parts.pop(0), _pop(parts, nn.BatchNorm2d, nn.GroupNorm)
        relu, pooling = _pop(parts, nn.ReLU), _pop(parts, nn.MaxPool2d)
        if not (_convolution_fits(convolution) and relu and _norm_fits(norm) and _pooling_fits(pooling)):
            return None
        assert isinstance(convolution, nn.Conv2d)
        biased, outputs = convolution.bias is not None, convolution.out_channels
        after = start + convolution.weight.numel() + outputs * biased
        place = _norm(norm, after, statistics_start)
        blocks.append(Block(start, convolution.in_channels, outputs, biased, place, pooling is not None))
        start = after + (2 * outputs if place else 0)
        if isinstance(norm, nn.BatchNorm2d):
            statistics_start += 2 * outputs
            momenta.add(norm.momentum or 0.0)
    flatten = _pop(parts, nn.Flatten)
    head, end = _head(parts, start)
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    chained = all(block.inputs == below.outputs for below, block in pairwise(blocks))
    # A part used twice is one set of weights in the flat vector, but was counted twice above.
    complete = end == sum(value.numel() for value in module.parameters())
    if not (blocks and _flatten_fits(flatten) and complete and chained) or hooked or len(momenta) > 1:
        return None
    return ConvNet(tuple(blocks), head, next(iter(momenta), 0.0))


def _pop(parts: list[nn.Module], *kinds: type[nn.Module]) -> nn.Module | None:
    """The next part, removed from the list, if it is exactly of one of these classes; None otherwise."""
    return parts.pop(0) if parts and type(parts[0]) in kinds else None


def _convolution_fits(part: nn.Module) -> bool:
    """Whether a `Conv2d` is 3 × 3, ungrouped, and padded with zeros so that it keeps the size."""
    assert isinstance(part, nn.Conv2d)
    return _has(part, _CONVOLUTION) and part.groups == 1 and part.padding_mode == "zeros"


def _pooling_fits(part: nn.Module | None) -> bool:
    """Whether the pooling is 2 × 2, or absent."""
    if not isinstance(part, nn.MaxPool2d):
        return True
    return _has(part, _POOLING) and not part.ceil_mode and not part.return_indices


def _norm_fits(part: nn.Module | None) -> bool:
    """Whether the norm has a gain and an offset and, if a batch norm, running statistics; or is absent."""
    if isinstance(part, nn.BatchNorm2d):
        return part.affine and part.track_running_stats
    return part is None or bool(part.affine)


def _flatten_fits(part: nn.Module | None) -> bool:
    """Whether there is a flattening, and it flattens all axes but the first."""
    return isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) == (1, -1)


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


def _has(part: nn.Module, wanted: dict[str, int]) -> bool:
    """Whether each of these attributes is this number, or a pair of it."""
    return all(getattr(part, name) in (value, (value, value)) for name, value in wanted.items())

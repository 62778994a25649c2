"""Copies and checks a user's module, and lists the names of its tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from sfedhp.core.errors import InputError
from sfedhp.core.imports import user_code


def check_supported(module: nn.Module, tied: Mapping[str, str]) -> None:
    """Refuse layers and parameters that cannot be stacked over clients.

    Args:
        module: a user's.
        tied: names of tensors that are the same as another one: name to first name.

    Raises:
        InputError: there is one.
    """
    for name, part in module.named_modules():
        kind = type(part).__name__
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None:
            raise InputError(
                f"The model's layer {name} ({kind}) has momentum=None, an average that cannot be "
                f"stacked: give it a momentum such as 0.1."
            )
    buffers = dict(module.named_buffers(remove_duplicate=False))
    if both := next((name for name in tied if name in buffers), None):
        raise InputError(
            f"The model's buffers {tied[both]} and {both} are one tensor, which cannot be tied: "
            f"keep one of them, and use it twice in forward."
        )
    strange = [name for name, value in module.named_parameters() if not value.is_floating_point()]
    if strange or not any(value.requires_grad for value in module.parameters()):
        what = f"parameter {strange[0]} is not real" if strange else "has no parameters to train"
        raise InputError(
            f"The model {type(module).__name__}: {what}; use a module with real weights that are "
            f"not all frozen."
        )


def aliases(module: nn.Module) -> dict[str, str]:
    """The further names of tensors that have several, such as tied weights: name to first name."""
    first: dict[int, str] = {}
    found = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, value in named(remove_duplicate=False):
            if first.setdefault(id(value), name) != name:
                found[name] = first[id(value)]
    return found


def prefers_channels_last(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a CPU computes a module faster on images whose channels are the last in memory.

    That is measured: all networks that we tried are, or as fast, but those with instance norm, which copies.
    """
    parts = [type(part) for part in module.modules()]
    copies = any(issubclass(part, _InstanceNorm) for part in parts)
    return dtype == torch.float32 and any(issubclass(part, nn.Conv2d) for part in parts) and not copies


def copy_module(module: nn.Module) -> nn.Module:
    """A deep copy of a user's module.

    Raises:
        InputError: it cannot be copied, or has lazy parameters without a size yet.
    """
    for name, part in module.named_modules():
        kind = type(part).__name__
        own = [*part.named_parameters(name, recurse=False), *part.named_buffers(name, recurse=False)]
        if sizeless := [each for each, value in own if is_lazy(value)]:
            raise InputError(
                f"The model's {sizeless[0]} has no size before a first forward: use "
                f"{kind.removeprefix('Lazy')} instead of {kind}, with the size of its inputs."
            )
    remedy = (
        "keep only parameters, buffers and plain values in it; torch.nn.utils.parametrizations has a "
        "weight_norm that can be"
    )
    with user_code(f"The model {type(module).__name__} cannot be copied", remedy):
        copied = copy.deepcopy(module)
    return copied

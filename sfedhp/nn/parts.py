"""Masks over the flat vector for named parts of a model."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor, nn

from sfedhp.core.errors import InputError
from sfedhp.nn.network import Network

NORMS: Final = (
    nn.modules.batchnorm._NormBase,  # batch and instance norm
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
)


@lru_cache(maxsize=32)
def part(network: Network, name: str, device: torch.device) -> Tensor:
    """Which of the weights (d,) belong to a part of the model, as bool; made once.

    Args:
        network: the model.
        name: `head` (the last layer), `body` (all but the head), `norm` (every layer that normalizes), or how
            names of parameters begin, such as `conv1`.
        device: of the mask.

    Raises:
        InputError: no parameter has a name that begins so.
    """
    head, norms = head_of(network), _norms(network)
    owners = {weight: weight.rpartition(".")[0] for weight in network.weights}
    inside = {
        weight: {"head": owner == head, "body": owner != head, "norm": owner in norms}.get(
            name, f"{weight}.".startswith(f"{name}.")
        )
        for weight, owner in owners.items()
    }
    if name not in ("head", "body", "norm") and not any(inside.values()):
        raise InputError(
            f"The model has no part {name!r}: use head, body, norm, or how a name of its parameters begins "
            f"({', '.join(network.weights)})."
        )
    mask = torch.zeros(network.d, dtype=torch.bool, device=device)
    first = 0
    for weight, shape in network.weights.items():
        mask[first : first + shape.numel()] = inside[weight]
        first += shape.numel()
    return mask


def head_of(network: Network) -> str:
    """The name of the last layer that has weights."""
    return [*network.weights][-1].rpartition(".")[0]


def _norms(network: Network) -> set[str]:
    return {name for name, layer in network.module.named_modules() if isinstance(layer, NORMS)}

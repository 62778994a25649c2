"""Parts of a model by name, as masks over its flat vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfedhp.core.errors import InputError
from sfedhp.nn.network import Network, split
from sfedhp.nn.parts import part

CPU = torch.device("cpu")


def names(module: nn.Module, name: str) -> list[str]:
    """The parameters whose weights are all in the part; the others have none in it."""
    network = Network(module)
    found = split(part(network, name, CPU), network.weights)
    assert all(bool(mask.all()) == bool(mask.any()) for mask in found.values())
    return [key for key, mask in found.items() if mask.all()]


MODULE = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(32, 3)
)


def test_the_head_is_the_last_layer_with_weights_and_the_body_the_rest() -> None:
    assert names(MODULE, "head") == ["5.weight", "5.bias"]
    body = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert names(MODULE, "body") == body
    assert names(nn.Sequential(*MODULE, nn.Softmax(-1)), "head") == ["5.weight", "5.bias"]
    assert names(nn.Linear(2, 3), "body") == []


def test_norms_are_all_layers_that_normalize() -> None:
    assert names(MODULE, "norm") == ["1.weight", "1.bias", "3.weight", "3.bias"]
    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert names(encoder, "norm") == ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"]


def test_a_part_is_named_as_its_parameters_begin() -> None:
    assert names(MODULE, "0") == ["0.weight", "0.bias"]
    assert names(MODULE, "3.bias") == ["3.bias"]
    with pytest.raises(InputError, match=r"no part 'conv': use head, body, norm, .* \(0.weight, 0.bias"):
        names(MODULE, "conv")

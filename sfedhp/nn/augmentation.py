"""Random crops and flips of images, keyed, for all clients of a stack at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, key, uniform
from sfedhp.core.types import Augment

_MARGIN: Final = 4  # pixels that a crop may move an image by, as usual for images of 32 × 32


def check_augment(augment: Augment, shape: Sequence[int]) -> None:
    """Refuse to augment inputs that are not images.

    Raises:
        InputError: inputs of this shape have no height and width.
    """
    if augment != "none" and (len(shape) not in (2, 3) or min(shape[-2:]) <= _MARGIN):
        raise InputError(
            f"data.augment = {augment} is for images, (height, width) or (channels, height, width), and "
            f"these inputs have shape {tuple(shape)}: set data.augment = none."
        )


def augmented(inputs: Tensor, keys: Tensor, augment: Augment) -> Tensor:
    """The images of a mini-batch, each cropped and flipped on its own.

    A crop moves an image by up to 4 pixels in each direction and fills with 0. This is the same as padding
    with 4 zeros on each side and cutting out the old size at a random place.

    Args:
        inputs: (..., rows, *shape), where the last two axes are height and width.
        keys: (...), of the mini-batch.
        augment: what to do.
    """
    if augment == "none":
        return inputs
    lead, height, width = keys.ndim + 1, *inputs.shape[-2:]
    rows = torch.arange(inputs.shape[keys.ndim], device=inputs.device)
    mine = key(keys.unsqueeze(-1), ROLES["augment"], rows)  # one for each image
    images = inputs.reshape(*inputs.shape[:lead], -1, height, width)
    across = torch.arange(width, device=inputs.device).expand(*mine.shape, width)
    if "flip" in augment:
        flips = uniform(key(mine, 0)) < 0.5
        across = torch.where(flips.unsqueeze(-1), across.flip(-1), across)
    if "crop" in augment:
        down = torch.arange(height, device=inputs.device) + _moves(key(mine, 1))
        images = _taken(images, down, -2)
        across = across + _moves(key(mine, 2))
    return _taken(images, across, -1).reshape(inputs.shape)


def _moves(keys: Tensor) -> Tensor:
    """A uniform integer from −4 to 4 for each key, (..., 1)."""
    return (uniform(keys) * (2 * _MARGIN + 1)).floor().long().unsqueeze(-1) - _MARGIN


def _taken(images: Tensor, places: Tensor, axis: int) -> Tensor:
    """The rows (axis −2) or columns (−1) of images at these places (..., length); 0 for those outside."""
    length = images.shape[axis]
    outside = (places < 0) | (places >= length)
    shape = (*places.shape[:-1], 1, *((length, 1) if axis == -2 else (1, length)))
    index = places.clamp(0, length - 1).view(shape).expand(images.shape)
    return images.gather(axis, index).masked_fill(outside.view(shape), 0.0)

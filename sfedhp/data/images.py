"""Images as an array of uint8, (rows, channels, height, width), with Pillow (the extra `images`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError

_GREY = ("L", "1", "LA", "La")


def check_pillow(what: str) -> None:
    """Check that Pillow is installed.

    Args:
        what: needs it.

    Raises:
        InputError: it is not.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise InputError(f"{what} needs Pillow: pip install 'sfedhp[images]'.") from None


def image_array(
    count: int,
    decode: Callable[[int], Any],
    name: Callable[[int], str],
    size: int | None,
    *,
    colored: bool = False,
) -> NDArray[np.uint8]:
    """All images in one array, grey if every image is; otherwise all become RGB.

    Args:
        count: how many there are.
        decode: gives the image of each number, as Pillow has it.
        name: how messages call it.
        size: to which height and width they are scaled; None: all must have the same.
        colored: make all RGB, even if they are grey.

    Raises:
        InputError: an image is of another size than the first, or has more than 8 bits a channel.
    """
    from PIL.Image import Resampling

    arrays: list[NDArray[np.uint8]] = []
    grey = not colored
    for row in range(count):
        image = decode(row)
        if image.mode.startswith(("I", "F")):
            raise InputError(
                f"{name(row)} has more than 8 bits a channel ({image.mode}): convert the images to 8 bits, "
                f"or give them as numbers in an .npz."
            )
        is_grey = image.mode in _GREY
        image = image.convert("L" if is_grey else "RGB")
        if size is not None:
            image = image.resize((size, size), Resampling.BILINEAR)
        array = np.asarray(image, np.uint8)
        if arrays and array.shape[:2] != arrays[0].shape[:2]:
            (height, width), (first_height, first_width) = array.shape[:2], arrays[0].shape[:2]
            raise InputError(
                f"{name(row)} has {width} × {height} pixels and {name(0)} {first_width} × {first_height}: "
                f"set data.image_size to scale all to one size, for example data.image_size=32."
            )
        grey = grey and is_grey
        arrays.append(array)
    return np.stack(_channels_first(arrays, grey))


def _channels_first(arrays: Sequence[NDArray[np.uint8]], grey: bool) -> list[NDArray[np.uint8]]:
    if grey:
        return [array[None] for array in arrays]
    colored = [array if array.ndim == 3 else np.repeat(array[..., None], 3, 2) for array in arrays]
    return [np.ascontiguousarray(array.transpose(2, 0, 1)) for array in colored]

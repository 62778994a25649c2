"""A folder of images as data: `root/label/*.png`, or `root/client/label/*.png` where clients have names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.text import printable
from sfedhp.data.columns import listed, sorted_names
from sfedhp.data.images import check_pillow, image_array
from sfedhp.data.owners import numbered
from sfedhp.data.pool import Names, Pool

SUFFIXES = (".png", ".jpg", ".jpeg")


def read_image_folder(root: Path, size: int | None) -> Pool:
    """All images below the folder; the names of folders are those of the classes and the clients.

    Args:
        root: the folder.
        size: the option `data.image_size`.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    check_pillow("A folder of images")
    paths = _images_below(root)
    folders = [path.relative_to(root).parts[:-1] for path in paths]
    depths = {len(parts) for parts in folders}
    if not depths <= {1, 2} or len(depths) > 1:
        usual = Counter(len(parts) for parts in folders[::-1] if len(parts) in (1, 2)).most_common(1)
        odd = [row for row, parts in enumerate(folders) if not usual or len(parts) != usual[0][0]]
        raise InputError(
            f"{paths[odd[0]]} is not where an image is expected: all must be in "
            f"{root.name}/label/, or all in {root.name}/client/label/."
        )
    labels = [parts[-1] for parts in folders]
    classes = sorted_names(set(labels))
    if len(classes) < 2:
        raise InputError(
            f"{root} has one class, {classes[0]!r}: there must be a folder for each of two or more."
        )
    client, clients = None, tuple[str, ...]()
    if depths == {2}:
        clients = sorted_names({parts[0] for parts in folders})
        client = numbered([parts[0] for parts in folders], clients)
    return Pool(
        name=root.name,
        inputs=read_images(paths, size),
        labels=numbered(labels, classes),
        classes=len(classes),
        client=client,
        notes=_folders_without_images(root, {path.relative_to(root).parts[0] for path in paths}),
        names=Names(classes=classes, clients=clients),
    )


def _folders_without_images(root: Path, used: Collection[str]) -> tuple[str, ...]:
    """A note on the folders of classes or clients that hold no image."""
    found = sorted(path.name for path in root.iterdir() if path.is_dir() and not _hidden(path, root))
    if not (empty := [name for name in found if name not in used]):
        return ()
    folders = "a folder" if len(empty) == 1 else "folders"
    return (f"{root.name} has {folders} without images, ignored: {printable(listed(empty))}.",)


def read_unlabelled(path: Path, size: int | None, *, colored: bool) -> NDArray[np.uint8]:
    """One image, or all below a folder in the order of their paths, wherever they are.

    Args:
        path: the image or the folder.
        size: the option `data.image_size`.
        colored: make all RGB, even if they are grey.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    check_pillow("An image")
    return read_images(images_of(path), size, colored=colored)


def images_of(path: Path) -> list[Path]:
    """The images in a folder in the order of their rows, or the one image.

    Raises:
        InputError: the folder has none.
    """
    return _images_below(path) if path.is_dir() else [path]


def read_images(paths: Sequence[Path], size: int | None, *, colored: bool = False) -> NDArray[np.uint8]:
    """These images as an array (rows, channels, height, width)."""
    return image_array(
        len(paths), lambda row: _decoded(paths[row]), lambda row: str(paths[row]), size, colored=colored
    )


def _images_below(root: Path) -> list[Path]:
    paths = sorted(
        path
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES and not _hidden(path, root) and not path.is_dir()
    )
    if not paths:
        raise InputError(f"{root} holds no images ({', '.join(SUFFIXES)}): give a folder root/label/*.png.")
    return paths


def _decoded(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.load()
            return image.copy()
    except UnidentifiedImageError:
        raise InputError(f"{path} is not an image: replace or remove it.") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path} is not an image that can be read ({why}): replace or remove it.") from None


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.relative_to(root).parts)

"""The data sources by name: finds, loads and lists them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from sfedhp.core.errors import InputError, did_you_mean
from sfedhp.core.types import ProblemOption
from sfedhp.data import embedded
from sfedhp.data.image_folder import read_image_folder
from sfedhp.data.npz import is_npz, read_npz
from sfedhp.data.options import DataOptions
from sfedhp.data.pfllib_folder import is_pfllib_folder, read_pfllib_folder
from sfedhp.data.pool import Pool, with_problem
from sfedhp.data.published_files import DataFile, State
from sfedhp.data.sources import CIFAR10, FMNIST, MNIST, ImageSet, uncompressed
from sfedhp.data.synthetic import CLASSES, synthetic
from sfedhp.data.table import SUFFIXES, is_table, read_table

IMAGE_SETS: dict[str, ImageSet] = {"mnist": MNIST, "fmnist": FMNIST, "cifar10": CIFAR10}
SYNTHETIC = "synthetic"
FILES = (".npz", *SUFFIXES)  # how the names of a user's own files end


class Listed(NamedTuple):
    """A line of `sfedhp data list`."""

    name: str
    images: int | None  # None: as many as the seed draws
    classes: int
    where: str
    present: bool


class FileState(NamedTuple):
    """A line of `sfedhp data verify`."""

    file: str
    state: State
    path: Path


def data_folder(folder: Path | str | None = None) -> Path:
    """The folder of the image sets: the given one, else SFEDHP_DATA, else one in the user's cache."""
    if folder is not None:
        return Path(folder)
    if named := os.environ.get("SFEDHP_DATA"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "sfedhp"


def load(
    options: DataOptions,
    *,
    clients: int,
    seed: int,
    folder: Path | str | None = None,
    problem: ProblemOption = "auto",
) -> Pool:
    """All rows of the source.

    Raises:
        InputError: the source is unknown, or its files are missing, damaged or not what they should be.
    """
    if options.source in IMAGE_SETS:
        return with_problem(read_images(IMAGE_SETS[options.source], data_folder(folder)), problem)
    if options.source == embedded.NAME:
        return with_problem(embedded.read_embedded(), problem)
    if options.source == SYNTHETIC:
        drawn = synthetic(options.synthetic_alpha, options.synthetic_beta, clients=clients, seed=seed)
        return with_problem(drawn, problem)
    if is_npz(options.source):
        return read_npz(Path(options.source).expanduser(), problem)
    if is_table(options.source):
        return read_table(Path(options.source).expanduser(), options, problem)
    if is_folder(options.source):
        root = Path(options.source).expanduser()
        if is_pfllib_folder(root):
            return read_pfllib_folder(root, problem)
        return with_problem(read_image_folder(root, options.image_size), problem)
    raise _unknown(options.source)


def is_file(source: str) -> bool:
    """Whether a source is a user's own file."""
    return is_npz(source) or is_table(source)


def is_folder(source: str) -> bool:
    """Whether a source is a folder; the name of one of this package's sources never is."""
    own = (embedded.NAME, SYNTHETIC, *IMAGE_SETS)
    return bool(source) and source not in own and os.path.isdir(Path(source).expanduser())


def beside(source: str, folder: Path) -> str:
    """The source that a config file in this folder names: paths of files and folders are relative to it."""
    path = folder / Path(source).expanduser()
    own = (embedded.NAME, SYNTHETIC, *IMAGE_SETS)
    named = is_file(source) or (bool(source) and source not in own and os.path.isdir(path))
    return str(path) if named else source


def read_images(images: ImageSet, root: Path) -> Pool:
    """The image set below the folder; the checksum of every file is checked as it is read."""
    contents = []
    for forms in images.parts:
        file, path = find_part(images, forms, root)
        content = _bytes_of(path)
        if not file.matches(content):
            raise InputError(
                f"{path} is not the published file (its checksum is wrong): "
                f"run `sfedhp data get {images.name}` to replace it."
            )
        contents.append(uncompressed(file, content))
    inputs, labels = images.read(contents)
    return Pool(images.name, inputs, labels, images.classes, counts=images.counts)


def find_part(images: ImageSet, forms: tuple[DataFile, ...], root: Path) -> tuple[DataFile, Path]:
    """The first form of a part that is there, and its path."""
    for file in forms:
        path = root / images.folder / file.name
        if path.is_file():
            return file, path
    raise InputError(
        f"{images.name} is not in {root} ({images.folder}/{forms[0].name} is missing): "
        f"run `sfedhp data get {images.name}`, or "
        f"`sfedhp data get {images.name} --from DIR` if you have the files in DIR."
    )


def image_set(name: str) -> ImageSet:
    """The image set of this name.

    Raises:
        InputError: there is none, or it needs no files.
    """
    if name in IMAGE_SETS:
        return IMAGE_SETS[name]
    if name in (embedded.NAME, SYNTHETIC):
        raise InputError(f"{name} is part of the package: there is nothing to download.")
    raise _unknown(name)


def verify(name: str, folder: Path | str | None = None) -> list[FileState]:
    """The state of each file of a source; none for a source without files."""
    if name == embedded.NAME:
        return [FileState(embedded.FILE.name, embedded.FILE.state(embedded.PATH), embedded.PATH)]
    if name == SYNTHETIC:
        return []
    images = image_set(name)
    return [part_state(images, forms, data_folder(folder)) for forms in images.parts]


def part_state(images: ImageSet, forms: tuple[DataFile, ...], root: Path) -> FileState:
    """The state of the file that would be read for a part."""
    try:
        file, path = find_part(images, forms, root)
    except InputError:
        return FileState(forms[0].name, "missing", root / images.folder / forms[0].name)
    return FileState(file.name, file.state(path), path)


def listing(folder: Path | str | None = None) -> list[Listed]:
    """Every source, and whether its files are there; `verify` checks their checksums."""
    root = data_folder(folder)
    rows = [
        Listed(embedded.NAME, embedded.IMAGES, embedded.CLASSES, "in the package", embedded.PATH.is_file())
    ]
    for name, images in IMAGE_SETS.items():
        below = root / images.folder
        present = all(any((below / file.name).is_file() for file in forms) for forms in images.parts)
        rows.append(Listed(name, images.images, images.classes, str(below), present))
    return [*rows, Listed(SYNTHETIC, None, CLASSES, "drawn from the seed", True)]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def _unknown(name: str) -> InputError:
    known = [embedded.NAME, *IMAGE_SETS, SYNTHETIC]
    files = f"{', '.join(FILES[:-1])} or {FILES[-1]}"
    if Path(name).expanduser().is_file():
        return InputError(f"{name} is a file of a kind that is not read: save it as one ending in {files}.")
    use = f"use {', '.join(known)}, a file ending in {files}, or a folder of images or of PFLlib."
    return InputError(f"There is no data source {name!r}: {did_you_mean(name, known, use)}")

"""The published image sets: their files with checksums, their addresses, and their formats."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfedhp.data.pool import Counts
from sfedhp.data.published_files import DataFile

Images = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True)
class ImageSet:
    """A published image set. Train and test images are pooled, because each client splits its own rows."""

    name: str
    folder: str  # below the data folder
    parts: tuple[tuple[DataFile, ...], ...]  # for each part the forms its file may have; one is enough
    images: int
    classes: int
    counts: Counts
    read: Callable[[Sequence[bytes]], Images]  # of the uncompressed parts, in their order
    addresses: tuple[str, ...]  # each ends in "/"; the second is tried if the first fails
    archive: DataFile | None = None  # the archive at these addresses, unless they have the files themselves
    other_folders: tuple[str, ...] = ()  # folders in which other programs keep the same files


def read_idx(parts: Sequence[bytes]) -> Images:
    """Images and labels of IDX files that come in pairs (images, labels)."""
    # The header is a magic number and one length per axis, 4 bytes each; checksums have vouched for it.
    images = [np.frombuffer(part, np.uint8, offset=16).reshape(-1, 1, 28, 28) for part in parts[::2]]
    labels = [np.frombuffer(part, np.uint8, offset=8) for part in parts[1::2]]
    return np.concatenate(images), np.concatenate(labels).astype(np.int64)


def read_cifar(parts: Sequence[bytes]) -> Images:
    """Images and labels of CIFAR-10's binary batches: a label byte, then 1024 red, green and blue ones."""
    records = np.concatenate([np.frombuffer(part, np.uint8).reshape(-1, 1 + 3 * 32 * 32) for part in parts])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def uncompressed(file: DataFile, content: bytes) -> bytes:
    """The file's content, decompressed if its name ends in .gz."""
    return gzip.decompress(content) if file.name.endswith(".gz") else content


def _idx_parts(*files: tuple[int, str]) -> tuple[tuple[DataFile, ...], ...]:
    """The four files of MNIST and of its followers, each in one form, from their sizes and SHA-256."""
    names = (
        f"{part}-{content}-ubyte.gz"
        for part in ("train", "t10k")
        for content in ("images-idx3", "labels-idx1")
    )
    return tuple((DataFile(name, *file),) for name, file in zip(names, files, strict=True))


def _batch(name: str, sha256: str, zipped_size: int, zipped_sha256: str) -> tuple[DataFile, ...]:
    plain = DataFile(f"{name}.bin", 30_730_000, sha256)
    return plain, DataFile(f"{name}.bin.gz", zipped_size, zipped_sha256)


MNIST = ImageSet(
    name="mnist",
    folder="mnist",
    parts=_idx_parts(
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    images=70_000,
    classes=10,
    counts=Counts(200, 800, 20),
    read=read_idx,
    addresses=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    other_folders=("MNIST/raw",),
)

FMNIST = replace(
    MNIST,
    name="fmnist",
    folder="fashion-mnist",
    parts=_idx_parts(
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    addresses=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # the publisher's; it has no https
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    other_folders=("FashionMNIST/raw", "data/fashion"),
)

CIFAR10 = ImageSet(
    name="cifar10",
    folder="cifar-10",
    parts=(
        _batch(
            "data_batch_1",
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            28_313_767,
            "6fcee3c4b6ea120cf82b263e2e9fe932e7edf7daf530e8b8ed62c178f70910c6",
        ),
        _batch(
            "data_batch_2",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            28_346_891,
            "fdda9af5bfc1ff90c0018a3c997cc37619077ae8e4e7f1238323a8259607add2",
        ),
        _batch(
            "data_batch_3",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            28_358_756,
            "6cfabbc0ca93a74e247cf16f68544c0b2162576f7e2aa8d8e5d73778cbdfe628",
        ),
        _batch(
            "data_batch_4",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            28_352_478,
            "361042113c9a826b76ab9f91d499ae3102fd43ece9af030844a33b4d801c2743",
        ),
        _batch(
            "data_batch_5",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            28_328_565,
            "4c618c86d699c20baa688bcbc1ca629a1c2e9bbe7647d66c2e6869b025174b12",
        ),
        _batch(
            "test_batch",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            28_330_804,
            "769dbbdb7f3fb0f1a165fdea73dde4ffa43f7218019984b6fd41eb85430846ac",
        ),
    ),
    images=60_000,
    classes=10,
    counts=Counts(100, 400, 20),
    read=read_cifar,
    addresses=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
    ),
    archive=DataFile(
        "cifar-10-binary.tar.gz",
        170_052_171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    other_folders=("cifar-10-batches-bin",),
)

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sfedhp.data import registry
from sfedhp.data.published_files import DataFile
from sfedhp.data.sources import CIFAR10, MNIST, ImageSet


def described(name: str, content: bytes) -> DataFile:
    return DataFile(name, len(content), hashlib.sha256(content).hexdigest())


@dataclasses.dataclass(frozen=True)
class SmallSet:
    """A published image set in miniature: real formats and checksums, a handful of images."""

    images: ImageSet
    contents: dict[str, bytes]  # what a publisher offers, by file name
    pixels: np.ndarray
    labels: np.ndarray

    def write(self, folder: Path, names: list[str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or self.contents:
            (folder / name).write_bytes(self.contents[name])


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">I", 0x800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> SmallSet:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (50, 28, 28), np.uint8)
    labels = random.integers(0, 10, 50, np.uint8)
    contents = {
        "train-images-idx3-ubyte.gz": idx(pixels[:40]),
        "train-labels-idx1-ubyte.gz": idx(labels[:40]),
        "t10k-images-idx3-ubyte.gz": idx(pixels[40:]),
        "t10k-labels-idx1-ubyte.gz": idx(labels[40:]),
    }
    parts = tuple((described(name, content),) for name, content in contents.items())
    images = dataclasses.replace(MNIST, parts=parts, images=50)
    monkeypatch.setitem(registry.IMAGE_SETS, "mnist", images)
    return SmallSet(images, contents, pixels[:, None], labels)


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> SmallSet:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (12, 3, 32, 32), np.uint8)
    labels = (np.arange(12) % 10).astype(np.uint8)
    records = np.concatenate([labels[:, None], pixels.reshape(12, -1)], axis=1)
    contents: dict[str, bytes] = {}
    parts = []
    for number, forms in enumerate(CIFAR10.parts):
        content = records[2 * number : 2 * number + 2].tobytes()
        zipped = gzip.compress(content, mtime=0)
        contents |= {forms[0].name: content, forms[1].name: zipped}
        parts.append((described(forms[0].name, content), described(forms[1].name, zipped)))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for forms in parts:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{forms[0].name}")
            member.size = forms[0].size
            tar.addfile(member, io.BytesIO(contents[forms[0].name]))
        readme = tarfile.TarInfo("cifar-10-batches-bin/readme.html")
        readme.size = 2
        tar.addfile(readme, io.BytesIO(b"hi"))
    assert CIFAR10.archive is not None
    contents[CIFAR10.archive.name] = archive.getvalue()
    images = dataclasses.replace(
        CIFAR10,
        parts=tuple(parts),
        images=12,
        archive=described(CIFAR10.archive.name, archive.getvalue()),
    )
    monkeypatch.setitem(registry.IMAGE_SETS, "cifar10", images)
    return SmallSet(images, contents, pixels, labels)

"""Published files: how long they are, their checksums, and writing them so that none is ever half there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "missing", "wrong"]
_CHUNK = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """One published file."""

    name: str
    size: int  # bytes
    sha256: str

    def matches(self, content: bytes) -> bool:
        """Whether these bytes are the published ones."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256

    def state(self, path: Path) -> State:
        """What lies at the path: the published file, nothing, or something else."""
        if not path.is_file():
            return "missing"
        if path.stat().st_size != self.size:
            return "wrong"
        with path.open("rb") as file:
            return "ok" if hashlib.file_digest(file, "sha256").hexdigest() == self.sha256 else "wrong"


def partial(path: Path) -> Path:
    """Where a file grows before it is whole."""
    return path.with_name(path.name + ".part")


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write beside the path, then rename: a reader sees the whole file or none."""
    with partial(path).open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    partial(path).replace(path)


def chunks_of(path: Path) -> Iterable[bytes]:
    """The file's bytes, a piece at a time."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk

"""Published files: their sizes and checksums, and whether the files at hand match them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "missing", "wrong"]
_CHUNK = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """A published file by its name, size and checksum."""

    name: str
    size: int  # bytes
    sha256: str

    def matches(self, content: bytes) -> bool:
        """Whether these bytes are the published ones."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256

    def state(self, path: Path) -> State:
        """Whether the path has the published file, no file, or another file."""
        if not path.is_file():
            return "missing"
        if path.stat().st_size != self.size:
            return "wrong"
        with path.open("rb") as file:
            return "ok" if hashlib.file_digest(file, "sha256").hexdigest() == self.sha256 else "wrong"


def chunks_of(path: Path) -> Iterable[bytes]:
    """The file's bytes in pieces of 1 MiB."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk

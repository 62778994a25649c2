"""What the files below a folder contain, to see that nothing changed them."""

from __future__ import annotations

from pathlib import Path


def file_bytes(folder: Path) -> dict[Path, bytes]:
    """The bytes of each file below a folder, by its path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

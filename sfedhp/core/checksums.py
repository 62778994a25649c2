"""Checksums in the files that sfedhp reads again, so that a flipped bit is detected.

A safetensors file has its checksum in its metadata, a JSON object under a key of its own. Files of older
versions have no checksum; they are read without a check.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from sfedhp.core.errors import InputError

CHECKSUM: Final = "sfedhp_checksum"  # in the metadata of a safetensors file
_KEY: Final = "checksum"  # in a JSON object
_DIGITS: Final = 32
BLANK: Final = "0" * _DIGITS  # in place of the checksum while it is computed
_CHUNK: Final = 2**20


class DamagedError(InputError):
    """The content of a file does not match its checksum or its format."""


def checksum(data: bytes) -> str:
    """The checksum of some bytes."""
    return _hash(data).hexdigest()


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum."""
    return {**values, _KEY: _of_values(values)}


def checked(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a file without its checksum, which must be right if there is one.

    Raises:
        DamagedError: it is wrong.
    """
    own = {name: value for name, value in values.items() if name != _KEY}
    if _KEY in values and values[_KEY] != _of_values(own):
        raise DamagedError(f"{path} is damaged: its content does not match its checksum.")
    return own


@contextmanager
def reading(path: Path, content: str, remedy: str) -> Iterator[None]:
    """Turn errors of reading a JSON file into a message with its content and a remedy; a missing file passes.

    Raises:
        DamagedError: the file cannot be opened, or does not hold what it should.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).rstrip(".")
        raise DamagedError(f"{path}, {content}, cannot be read ({reason}): {remedy}.") from None


def seal(path: Path) -> None:
    """Put the checksum into a safetensors file that was written with `BLANK` in its place.

    The entries of the header are sorted: safetensors writes metadata in any order, and equal runs have equal
    files.
    """
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        metadata = dict(sorted(header.pop("__metadata__").items()))
        text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":"), ensure_ascii=False)
        blank = text.encode().ljust(length)
        assert len(blank) == length, "the same entries in another order"
        digest = _digest(length, blank, file)
        file.seek(8)
        file.write(blank.replace(_field(BLANK), _field(digest), 1))


def check_sealed(path: Path) -> None:
    """Check the checksum of a safetensors file, if it has one.

    Raises:
        OSError: the file is not there, or cannot be read.
        DamagedError: the file is not as it was written, or is not a safetensors file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise DamagedError(f"{path} is damaged: it is not a whole safetensors file.")
        header = file.read(length)
        at = header.find(f'"{CHECKSUM}":"'.encode())
        if at < 0:
            return
        first = at + len(CHECKSUM) + 4
        found = header[first : first + _DIGITS]
        blank = header[:first] + BLANK.encode() + header[first + _DIGITS :]
        if found != _digest(length, blank, file).encode():
            raise DamagedError(f"{path} is damaged: its content does not match its checksum.")


def _field(digest: str) -> bytes:
    return f'"{CHECKSUM}":"{digest}"'.encode()


def _digest(length: int, header: bytes, rest: BinaryIO) -> str:
    """The checksum of a safetensors file with this header, and the rest of an open file."""
    digest = _hash(length.to_bytes(8, "little"))
    digest.update(header)
    while chunk := rest.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _of_values(values: Mapping[str, Any]) -> str:
    return checksum(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def _hash(data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=_DIGITS // 2)

"""A file of records: a line of JSON for each round, and beside it the checksum of each line.

`history.jsonl` has its checksums in `history.jsonl.crc32`, one for each line. Folders of older versions have
no such file, and their lines are read without.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, Final

from sfedhp.core.checksums import DamagedError
from sfedhp.core.files import fsync, write_atomically
from sfedhp.core.parsing import parse_json

Row = dict[str, Any]
# What the names in a history begin with: a metric that is not finite is written as null, a cost never is.
_METRICS: Final = {"pm", "em", "gm", "train", "density"}
_COSTS: Final = {"bytes", "formula", "link", "seconds"}
_LARGEST: Final = 10**300  # of whole numbers, whose sums then fit a float


class RecordFile:
    """Writes records, and reads them back."""

    def __init__(self, path: Path):
        self.path = path
        self._checksums = path.with_name(f"{path.name}.crc32")
        self._held: IO[bytes] | None = None

    def write(self, rows: Iterable[Row]) -> None:
        """Replace the whole file by these rows, and its checksums."""
        lines = [_line(row) for row in rows]
        # In this order, a kill in between leaves only checksums of lines that no longer exist.
        write_atomically(self.path, lambda beside: beside.write_bytes(b"".join(lines)))
        sums = b"".join(map(_checksum, lines))
        write_atomically(self._checksums, lambda beside: beside.write_bytes(sums))

    def append(self, row: Row) -> None:
        """Add a record.

        Raises:
            FileNotFoundError: the file was removed since it was written.
        """
        line = _line(row)
        for path, data in ((self.path, line), (self._checksums, _checksum(line))):
            with _appending(path) as file:
                file.write(data)
        held = self._held and os.fstat(self._held.fileno())
        if held and not os.path.samestat(held, self.path.stat()):
            raise FileNotFoundError(f"{self.path} was replaced")

    def hold(self) -> None:
        """Keep the file open, so that its records can be read even if its folder is removed."""
        if self.path.exists():
            self._held = self.path.open("rb")

    def release(self) -> None:
        """Close the file that `hold` opened."""
        if self._held is not None:
            self._held.close()

    def held_rows(self) -> list[Row]:
        """The records of the file that `hold` opened, as far as they are whole."""
        if self._held is None:
            return []
        self._held.seek(0)
        return [_row(line) for line in self._held if line.endswith(b"\n")]

    def fsync(self) -> None:
        """Wait until all records are on the disk."""
        for path in (self.path, self._checksums):
            fsync(path)

    def rows(self) -> Iterator[Row]:
        """The records, one after the other; a last one that a kill cut short is left out.

        Raises:
            FileNotFoundError: there is no file.
            DamagedError: a line is not as it was written; names it.
        """
        with self.path.open("rb") as file, _lines(self._checksums) as sums:
            for number, (line, expected) in enumerate(zip(file, chain(sums, repeat(b"")), strict=False), 1):
                if not line.endswith(b"\n"):
                    return
                if expected.endswith(b"\n") and expected != _checksum(line):
                    raise DamagedError(f"{self.path} is damaged in line {number}: its checksum is wrong.")
                try:
                    yield _row(line)
                except ValueError as error:
                    raise DamagedError(f"{self.path} is damaged in line {number}: {error}.") from None


def _row(line: bytes) -> Row:
    """The record of a line.

    Raises:
        ValueError: it is not one.
    """
    row = parse_json(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a record")
    number = row.get("round")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError("it has no round")
    for name, value in row.items():
        kind = name.partition("_")[0]
        most = _LARGEST if isinstance(value, int) else math.inf
        is_number = isinstance(value, float | int) and abs(value) < most
        if "seconds" in row and (
            (kind in _COSTS and not is_number) or (kind in _METRICS and not is_number and value is not None)
        ):
            raise ValueError(f"its entry {name!r} is not a number")
    return row


def _line(row: Row) -> bytes:
    return json.dumps(row).encode() + b"\n"


def _checksum(line: bytes) -> bytes:
    return f"{zlib.crc32(line):08x}\n".encode()


def _appending(path: Path) -> IO[bytes]:
    """A file that is there, to be appended to."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags & ~os.O_CREAT))


@contextmanager
def _lines(path: Path) -> Iterator[Iterable[bytes]]:
    """The lines of a file; empty if there is no file."""
    if not path.exists():
        yield ()
        return
    with path.open("rb") as file:
        yield file

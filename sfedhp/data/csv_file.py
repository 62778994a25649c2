"""Reading a `.csv` file: UTF-8 text whose first line names the columns, with commas, semicolons or tabs."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.data.columns import Table, check_names, text_column

_NAMES = {",": "a comma", ";": "a semicolon", "\t": "a tab"}  # of the delimiters
_SAMPLE = 50  # records that decide the delimiter


def read_csv(path: Path) -> Table:
    """The table in the file.

    Raises:
        InputError: one sentence on the first thing that is wrong, with its line if there is one.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path.name} is not UTF-8 text (line {line}): save it as UTF-8.") from None
    if not text.strip() or "\0" in text:
        raise InputError(f"{path.name} is {'not text' if text.strip() else 'empty'}: give a table as CSV.")
    return _parsed(path.name, text, _delimiter(text))


def _delimiter(text: str) -> str:
    """The delimiter: it divides most of the first records into as many parts as the header."""

    def fit(delimiter: str) -> tuple[bool, int, int]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        try:
            widths = [len(record) for record in itertools.islice(filter(None, reader), _SAMPLE)]
        except csv.Error:  # a value without a closing quote; rejected below, with its line
            return False, 0, 0
        return widths[0] > 1, widths.count(widths[0]), widths[0]

    return max(_NAMES, key=fit)


def _parsed(name: str, text: str, delimiter: str) -> Table:
    # csv needs unchanged line ends: a quoted value may span lines.
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    rows: list[list[str]] = []
    places: list[int] = []
    header: list[str] | None = None
    first = 1  # line on which the next record starts
    try:
        for record in reader:
            place, first = first, reader.line_num + 1
            if not record:  # a blank line
                continue
            if header is None:
                header = [cell.strip() for cell in record]
                check_names(name, header)
                continue
            if len(record) != len(header):
                raise InputError(
                    f"{name}: line {place} has {counted(len(record), 'value')}, but there are "
                    f"{counted(len(header), 'column')}: repair the line, or put quotes around text with "
                    f"{_NAMES[delimiter]}."
                )
            rows.append([cell.strip() for cell in record])
            places.append(place)
    except csv.Error as error:
        raise InputError(f"{name}: line {first} cannot be read as CSV ({error}): check its quotes.") from None
    if not rows or header is None:
        raise InputError(f"{name} has no rows below its first line, which names the columns: add rows.")
    cells = zip(*rows, strict=True)
    columns = tuple(text_column(column, values) for column, values in zip(header, cells, strict=True))
    return Table(name, columns, "line", places)

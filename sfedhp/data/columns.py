"""The columns of a table as a file holds them: numbers, booleans, text or times, with missing values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError

Kind = Literal["number", "boolean", "text", "time", "other"]
MISSING = frozenset(("", "na", "n/a", "nan", "null"))  # in lower case
BOOLEANS = {"false": 0.0, "true": 1.0}
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s?([AP]M|Z|[+-]\d{2}(:?\d{2})?)?"
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAYS = (
    r"\d{4}[-./]\d{1,2}[-./]\d{1,2}",
    r"\d{1,2}[-./]\d{1,2}[-./]\d{4}",
    r"\d{1,2}[./]\d{1,2}[./]\d{2}",
    rf"\d{{1,2}}\.?[ -]{_MONTH},?[ -]\d{{2,4}}",
    rf"{_MONTH} \d{{1,2}},? \d{{4}}",
)
_TIME = re.compile(rf"({'|'.join(_DAYS)})([T ]{_CLOCK})?|{_CLOCK}", re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    texts: Sequence[str | None]  # each value as text; None: missing
    numbers: NDArray[np.float64]  # of a number or boolean, NaN where missing; empty for other kinds

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Whether each value is missing."""
        return np.array([text is None for text in self.texts], np.bool_)


@dataclass(frozen=True, eq=False)
class Table:
    """A table of named columns, all of the same length."""

    name: str  # how messages call it
    columns: tuple[Column, ...]
    row_word: str  # what a number in `places` counts: "line" of a text file, or "row"
    places: Sequence[int]  # where each row is in the file, from 1

    def place(self, row: int) -> str:
        """Where a row is, in words: "line 17"."""
        return f"{self.row_word} {self.places[row]}"

    def find(self, key: str, name: str) -> Column:
        """The column that an option names.

        Args:
            key: the option, for the message.
            name: the column's.

        Raises:
            InputError: there is none; names the nearest one.
        """
        names = [column.name for column in self.columns]
        if name in names:
            return self.columns[names.index(name)]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its columns are {listed(names)}."
        raise InputError(f"{key} = {name!r} is not a column of {self.name}: {hint}")

    def first_huge(self, column: Column) -> str | None:
        """The place of the first known number that is infinite or too large for a run, or None."""
        # The comparison is False for NaN too, and a missing value is NaN.
        huge = ~column.missing & ~(np.abs(column.numbers) <= _LARGEST)
        return self.place(int(huge.argmax())) if huge.any() else None

    def check_complete(self, column: Column, key: str) -> None:
        """Refuse a column that has no value in some row.

        Args:
            column: of this table.
            key: the option that names it, for the message.

        Raises:
            InputError: names the first such row.
        """
        missing = column.missing
        if missing.any():
            row = int(missing.argmax())
            raise InputError(
                f"{self.name}: column {column.name!r} has no value in {self.place(row)}, and {key} needs one "
                f"in every row: fill it in, or remove the row."
            )


def listed(names: Sequence[str], most: int = 20) -> str:
    """The names with commas between them, at most `most` of them."""
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def check_names(table: str, names: Sequence[str]) -> None:
    """Refuse columns without a name, or with one that another has.

    Raises:
        InputError: names the first such column.
    """
    for number, name in enumerate(names, 1):
        if not name:
            raise InputError(
                f"{table}: column {number} has no name: name it, or leave the column out of the file "
                f"(with pandas: to_csv(…, index=False))."
            )
        if name in names[: number - 1]:
            raise InputError(f"{table} has two columns {name!r}: give each its own name.")


def text_column(name: str, cells: Sequence[str]) -> Column:
    """A column of a text file; its kind is what all values that are not missing can be read as."""
    texts = [None if cell.lower() in MISSING else cell for cell in cells]
    known = [text for text in texts if text is not None]
    if known and all(text.lower() in BOOLEANS for text in known):
        values = [np.nan if text is None else BOOLEANS[text.lower()] for text in texts]
        return Column(name, "boolean", texts, np.array(values))
    numbers = numbers_of(texts)
    if numbers is not None:
        return Column(name, "number", texts, numbers)
    times = sum(_TIME.fullmatch(text) is not None for text in known)
    return Column(name, "time" if 2 * times > len(known) else "text", texts, np.empty(0))


def numbers_of(texts: Sequence[str | None]) -> NDArray[np.float64] | None:
    """The values as numbers, NaN where missing; None where one is not a number."""
    try:
        numbers = np.array([np.nan if text is None else float(text) for text in texts])
    except ValueError:
        return None
    # Python reads 1_000 as a number; people who write such text mean a name.
    return None if any(text is not None and "_" in text for text in texts) else numbers


def first_text(column: Column) -> int | None:
    """The row of the first value that is not a number, where at least half are numbers; otherwise None."""
    numeric = [text is not None and numbers_of([text]) is not None for text in column.texts]
    known = sum(text is not None for text in column.texts)
    if 2 * sum(numeric) < known:
        return None
    others = (row for row, text in enumerate(column.texts) if text is not None and not numeric[row])
    return next(others, None)


def has_decimal_commas(column: Column) -> bool:
    """Whether most values are numbers with a comma for the decimal point."""
    known = [text for text in column.texts if text is not None]
    return 2 * sum(_DECIMAL_COMMA.fullmatch(text) is not None for text in known) > len(known)


def plain_text(value: Any) -> str:
    """A value as text; a whole number of a floating type without its decimals."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """The names in order: of their numbers where all are whole numbers, otherwise of the alphabet."""
    if all(re.fullmatch(r"[+-]?\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))

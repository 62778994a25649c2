"""The columns of a table as a file holds them: numbers, booleans, text or times, with missing values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError, did_you_mean

Kind = Literal["number", "boolean", "text", "time", "other"]
MISSING = frozenset(("", "na", "n/a", "nan", "null"))  # in lower case
BOOLEANS = {"false": 0.0, "true": 1.0}
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s?([AP]M|Z|UTC|GMT|[+-]\d{2}(:?\d{2})?)?"
_WEEKDAY = r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? "
_MONTH = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAYS = (
    r"\d{4}[-./]\d{1,2}[-./]\d{1,2}",
    r"\d{1,2}[-./]\d{1,2}[-./]\d{4}",
    r"\d{1,2}[./]\d{1,2}[./]\d{2}",
    rf"\d{{1,2}}\.?[ /-]{_MONTH},?[ /-]\d{{2,4}}",
    rf"{_MONTH} \d{{1,2}},? \d{{4}}",
)
_COMPACT = r"\d{8}T\d{4}(\d{2})?Z?"
_TIME = re.compile(rf"({_WEEKDAY})?({'|'.join(_DAYS)})([T :]{_CLOCK})?|{_CLOCK}|{_COMPACT}", re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)
_DECIMAL_COMMA = r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+"
_THOUSANDS = r"[+-]?\d{1,3}([,'’ \u00a0\u202f]\d{3})+([.,]\d+)?"
_SEPARATED = re.compile(f"{_THOUSANDS}|{_DECIMAL_COMMA}")  # numbers, but not in the form that is read
_THOUSAND = re.compile(_THOUSANDS)
AS_READ = "write a decimal point and no thousands separators"  # the form that is read


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
        hint = did_you_mean(name, names, f"its columns are {listed(names)}.")
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
    """The values as numbers, NaN where missing; None if one is not a number."""
    try:
        numbers = np.array([np.nan if text is None else float(text) for text in texts])
    except ValueError:
        return None
    # Python reads 1_000 as a number; people who write such text mean a name.
    return None if any(text is not None and "_" in text for text in texts) else numbers


def is_number(text: str) -> bool:
    """Whether a text is a number in the form that is read."""
    return numbers_of([text]) is not None


def first_text(column: Column) -> int | None:
    """The row of the first value that is not a number, where at least half are numbers; otherwise None."""
    known = [(row, text) for row, text in enumerate(column.texts) if text is not None]
    others = [row for row, text in known if not is_number(text)]
    return others[0] if others and 2 * len(others) <= len(known) else None


def is_separated(text: str) -> bool:
    """Whether a text is a number with a decimal comma or thousands separators, which is not read as one."""
    return _SEPARATED.fullmatch(text) is not None


def first_separated(column: Column) -> int | None:
    """The row of the first number with a decimal comma or thousands separators, if the column holds numbers.

    It does if most values have this form, or all others are plain numbers and the form is that of thousands;
    "1,2" among plain numbers may well be a text. Otherwise None.
    """
    known = [(row, text) for row, text in enumerate(column.texts) if text is not None]
    others = [(row, text) for row, text in known if not is_number(text)]
    separated = [row for row, text in others if is_separated(text)]
    if 2 * len(separated) > len(known) or all(_THOUSAND.fullmatch(text) for _, text in others):
        return next(iter(separated), None)
    return None


def plain_text(value: Any) -> str:
    """A value as text; a whole number of a floating type without its decimals."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value).lower() if isinstance(value, bool) else str(value)


def sorted_names(names: set[str]) -> tuple[str, ...]:
    """The names in order: of their numbers where all are whole numbers, otherwise of the alphabet."""
    if all(re.fullmatch(r"[+-]?\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))

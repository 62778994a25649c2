"""Encodes the columns of a table as inputs of a model: fitted on one table, applied to others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError, did_you_mean
from sfedhp.data.columns import (
    AS_READ,
    Column,
    Table,
    first_separated,
    first_text,
    is_number,
    is_separated,
    listed,
    sorted_names,
)

MOST_VALUES = 50  # categories of a column of text, classes of a target of whole numbers


class EncodedColumn(NamedTuple):
    """The encoding of one column: a number, 0 or 1, or a 0 or 1 for each category."""

    name: str
    kind: str  # number, boolean or text
    categories: tuple[str, ...]  # of a text, in order; none for other kinds
    missing: bool  # one more input says where the value is missing

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs it becomes."""
        names = [f"{self.name} = {each}" for each in self.categories] if self.kind == "text" else [self.name]
        return [*names, f"{self.name} missing"] if self.missing else names

    @property
    def are_numbers(self) -> list[bool]:
        """Which of these inputs are not just 0 or 1."""
        return [self.kind == "number" and name == self.name for name in self.inputs]


@dataclass(frozen=True)
class Encoding:
    """The columns that are inputs, in their order."""

    columns: tuple[EncodedColumn, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def are_numbers(self) -> NDArray[np.bool_]:
        """Which inputs are not just 0 or 1, and so may be standardized."""
        return np.array([each for column in self.columns for each in column.are_numbers], np.bool_)

    @classmethod
    def of(cls, table: Table, others: Collection[str]) -> Self:
        """The encoding of a table's columns but these, with the categories of all its rows.

        Raises:
            InputError: a column cannot be an input.
        """
        encoding = cls(tuple(_learn(table, column) for column in table.columns if column.name not in others))
        if not encoding.columns:
            raise InputError(f"{table.name} has no column left to predict from: drop fewer.")
        for name in encoding.inputs:
            if encoding.inputs.count(name) > 1:
                raise InputError(
                    f"{table.name}: two inputs would have the name {name!r}: rename the column of that name."
                )
        return encoding

    def apply(self, table: Table) -> NDArray[np.float64]:
        """The inputs (rows, inputs) of a table, NaN where a number is missing. Other columns are not read.

        Raises:
            InputError: a column is not there, or holds what the encoding does not know.
        """
        names = [column.name for column in table.columns]
        values: list[NDArray[np.float64]] = []
        for known in self.columns:
            if known.name not in names:
                raise InputError(
                    f"{table.name} has no column {known.name!r}, which the model needs: "
                    f"{self._renamed(known.name, names)}"
                )
            values += _values(table, table.columns[names.index(known.name)], known)
        return np.stack(values, axis=1)

    def _renamed(self, name: str, names: Sequence[str]) -> str:
        """The end of a message about a column that a table lacks: one that may have to be renamed to it."""
        needed = [column.name for column in self.columns]
        others = [each for each in names if each not in needed]
        use = f"its columns are {listed(names)}."
        return did_you_mean(name, others, use, lambda near: f"{name!r} by its column {near!r}")

    def to_list(self) -> list[dict[str, Any]]:
        """The columns as JSON can hold them."""
        return [column._asdict() for column in self.columns]

    @classmethod
    def from_list(cls, columns: list[Mapping[str, Any]]) -> Self:
        """The encoding that `to_list` wrote.

        Raises:
            KeyError, TypeError: it is not one.
        """
        return cls(
            tuple(
                EncodedColumn(
                    str(each["name"]), str(each["kind"]), tuple(each["categories"]), bool(each["missing"])
                )
                for each in columns
            )
        )


def notes_on(table: Table, encoding: Encoding) -> list[str]:
    """Which columns are text only because of a few values."""
    text = {column.name for column in encoding.columns if column.kind == "text"}
    notes = []
    for column in table.columns:
        if column.name in text and (row := first_text(column)) is not None:
            notes.append(
                f"{table.name}: column {column.name!r} is read as text because of {column.texts[row]!r} in "
                f"{table.place(row)}; leave values that are missing empty."
            )
    return notes


def _learn(table: Table, column: Column) -> EncodedColumn:
    """The encoding of a column, from its kind and its values."""
    missing = column.missing
    drop = f"or leave it out with data.drop={column.name}"
    if missing.all():
        raise InputError(f"{table.name}: column {column.name!r} is empty: fill it, {drop}.")
    if column.kind == "time":
        example = next(text for text in column.texts if text is not None)
        raise InputError(
            f"{table.name}: column {column.name!r} holds dates or times ({example}): turn it into numbers, "
            f"{drop}."
        )
    if column.kind == "other":
        raise InputError(
            f"{table.name}: column {column.name!r} holds neither numbers nor text: change it, {drop}."
        )
    categories: tuple[str, ...] = ()
    if column.kind == "text":
        _check_categories(table, column, drop)
        categories = sorted_names({text for text in column.texts if text is not None})
    return EncodedColumn(column.name, column.kind, categories, bool(missing.any()))


def _values(table: Table, column: Column, known: EncodedColumn) -> list[NDArray[np.float64]]:
    """The inputs (rows,) that a column of a table becomes."""
    missing = column.missing
    if missing.any() and not known.missing:
        raise InputError(
            f"{table.name}: column {column.name!r} has no value in {table.place(int(missing.argmax()))}, and "
            f"the model was trained without missing values there: fill it in, or remove the row."
        )
    values = _categories(table, column, known) if known.kind == "text" else [_numbers(table, column, known)]
    return [*values, missing.astype(np.float64)] if known.missing else values


def _categories(table: Table, column: Column, known: EncodedColumn) -> list[NDArray[np.float64]]:
    for row, text in enumerate(column.texts):
        if text is not None and text not in known.categories:
            raise InputError(
                f"{table.name}: column {column.name!r} has {text!r} in {table.place(row)}, which is not a "
                f"category of the training data ({listed(known.categories)}): correct it, or remove the row."
            )
    texts = np.array(column.texts, object)
    return [(texts == category).astype(np.float64) for category in known.categories]


def _numbers(table: Table, column: Column, known: EncodedColumn) -> NDArray[np.float64]:
    missing = column.missing
    if missing.all():  # a column without values has any kind
        return np.full(len(missing), np.nan)
    if column.kind != known.kind:
        texts = [(row, text) for row, text in enumerate(column.texts) if text is not None]
        numbers = known.kind == "number"
        row, wrong = next((pair for pair in texts if numbers and not is_number(pair[1])), texts[0])
        what = "a number" if numbers else "true or false"
        remedy = AS_READ if numbers and is_separated(wrong) else "correct it, or remove the row"
        raise InputError(
            f"{table.name}: column {column.name!r} has {wrong!r} in {table.place(row)}, but the training "
            f"data has {what} there: {remedy}."
        )
    if (place := table.first_huge(column)) is not None:
        raise InputError(
            f"{table.name}: column {column.name!r} holds an infinite or huge (above 3e38) number in "
            f"{place}: correct it, or leave it empty."
        )
    return column.numbers


def _check_categories(table: Table, column: Column, drop: str) -> None:
    if (row := first_separated(column)) is not None:
        raise InputError(
            f"{table.name}: column {column.name!r} has numbers such as {column.texts[row]!r} in "
            f"{table.place(row)}: {AS_READ}, {drop}."
        )
    count = len({text for text in column.texts if text is not None})
    if count > MOST_VALUES:
        row = first_text(column)
        why = "" if row is None else f" (text because of {column.texts[row]!r} in {table.place(row)})"
        raise InputError(
            f"{table.name}: column {column.name!r} has {count} different texts{why}, and at most "
            f"{MOST_VALUES} can be categories: group them, {drop}."
        )

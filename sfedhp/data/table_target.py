"""Encodes a table's target columns: as classes, several labels, or numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemName, ProblemOption
from sfedhp.data.columns import (
    Column,
    Table,
    first_separated,
    first_text,
    is_number,
    listed,
    plain_text,
    sorted_names,
)
from sfedhp.data.encoding import MOST_VALUES
from sfedhp.data.owners import numbered
from sfedhp.data.targets import target_of

_SURELY_CLASSES = 10  # whole numbers in a target that get no note


def target_of_table(
    table: Table, targets: Sequence[Column], problem: ProblemOption
) -> tuple[NDArray[Any], tuple[str, ...], ProblemName, list[str]]:
    """The labels of all rows, the names of classes or labels, the problem, and notes."""
    if problem == "reconstruction":
        return np.zeros(len(table.places), np.int64), (), "reconstruction", []
    for target in targets:
        table.check_complete(target, "data.target")
        if len(target.numbers) and (place := table.first_huge(target)) is not None:
            raise InputError(
                f"{table.name}: the target {target.name!r} is infinite or huge (above 3e38) in {place}: "
                f"correct it, or remove the row."
            )
    one = targets[0] if len(targets) == 1 else None
    if problem == "classification" and one is None:
        raise InputError(
            f"data.target names {len(targets)} columns, and problem = classification predicts one: name one."
        )
    if one is not None and (problem == "classification" or (problem == "auto" and _may_be_classes(one))):
        notes = _check_text(table, one) if problem == "auto" and one.kind == "text" else []
        labels, names = _classes(table, one)
        if one.kind == "text":
            notes = [*notes, *_like_names(table, one, names)]
        elif one.kind == "number" and problem == "auto" and len(names) > _SURELY_CLASSES:
            notes.append(
                f"{table.name}: the target {one.name!r} has {len(names)} different whole numbers: problem = "
                f"classification; set problem=regression to predict numbers."
            )
        return labels, names, "classification", notes
    for target in targets:
        if target.kind not in ("number", "boolean"):
            raise _not_numbers(table, target, problem, several=one is None)
    named = repr(one.name) if one is not None else f"[{listed([target.name for target in targets])}]"
    name = f"{table.name}: the target {named}"
    values = np.stack([target.numbers for target in targets], 1)
    if one is not None and problem != "multilabel":
        note = f"{name} holds numbers that are not classes: problem = regression."
        labels = target_of(name, values, "regression").labels
        return labels, (), "regression", [note] if problem == "auto" else []
    found = target_of(name, values, problem)
    names = tuple(target.name for target in targets) if found.problem == "multilabel" else ()
    return found.labels, names, found.problem, [found.note] if found.note else []


def _may_be_classes(target: Column) -> bool:
    """Whether a target is not clearly a quantity: numbers that are not whole, or many different ones."""
    if target.kind != "number":
        return True
    whole = bool((target.numbers == np.round(target.numbers)).all())
    return whole and len(np.unique(target.numbers)) <= MOST_VALUES


def _not_numbers(table: Table, target: Column, problem: ProblemOption, *, several: bool) -> InputError:
    """Why the target cannot be predicted as numbers."""
    otherwise = (
        "choose other columns." if several else "choose another column, or set problem=classification."
    )
    if (wrong := _wrong_form(table, target)) is not None:
        return InputError(f"{wrong}, or {otherwise}")
    row = next(row for row, text in enumerate(target.texts) if not is_number(str(text)))
    wanted = "several targets need" if problem == "auto" else f"problem = {problem} needs"
    return InputError(
        f"{table.name}: the target {target.name!r} holds text ({target.texts[row]!r} in {table.place(row)}), "
        f"and {wanted} numbers: {otherwise}"
    )


def _wrong_form(table: Table, target: Column) -> str | None:
    """What is wrong with numbers that are not read as such, and how to write them; None if they are not."""
    what = f"{table.name}: the target {target.name!r}"
    if (row := first_separated(target)) is not None:
        return (
            f"{what} has numbers such as {target.texts[row]!r} in {table.place(row)}: write a decimal point "
            f"and no thousands separators"
        )
    if all(is_number(str(text)) for text in target.texts):
        return f"{what} holds numbers that are stored as text ({target.texts[0]!r}): store numbers"
    return None


def _check_text(table: Table, target: Column) -> list[str]:
    """Refuse a target of text that looks like numbers to predict; notes on one that may be no classes.

    Raises:
        InputError: says what makes it text.
    """
    what, names = f"{table.name}: the target {target.name!r}", {str(text) for text in target.texts}
    otherwise = "or set problem=classification if these are classes."
    numbers = np.array([float(text) for text in names if is_number(text)])
    whole = bool((numbers == np.round(numbers)).all())
    wrong = _wrong_form(table, target)
    codes = whole and len(numbers) == len(names)  # whole numbers that are stored as text
    if wrong is not None and not codes:
        raise InputError(f"{wrong}, {otherwise}")
    if wrong is None and (row := first_text(target)) is not None:
        because = f"{what} is read as text because of {target.texts[row]!r} in {table.place(row)}"
        if not whole or len(numbers) > MOST_VALUES:
            raise InputError(f"{because}: correct it or remove the row, {otherwise}")
        return [f"{because}, which becomes a class: remove the row if the value is missing."]
    if len(names) > MOST_VALUES:
        return [f"{what} has {len(names)} different texts, taken as classes: choose another if they are not."]
    return []


def _like_names(table: Table, target: Column, classes: Sequence[str]) -> Iterator[str]:
    """A note on each pair of classes that differ only in upper and lower case: one may be misspelt."""
    seen: dict[str, str] = {}
    for name in classes:
        first = seen.setdefault(name.casefold(), name)
        if first != name:
            yield (
                f"{table.name}: the target {target.name!r} has the classes {first!r} and {name!r}, which "
                f"differ only in case: write them alike if they are the same class."
            )


def _classes(table: Table, target: Column) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The label of each row, and the names of the classes in their order."""
    if target.kind in ("time", "other"):
        raise InputError(
            f"{table.name}: the target {target.name!r} holds neither text nor numbers, and only these can be "
            f"predicted: choose another column."
        )
    if target.kind == "number":
        whole = np.isfinite(target.numbers) & (target.numbers == np.round(target.numbers))
        values, labels = np.unique(target.numbers, return_inverse=True)
        if not whole.all() or len(values) > MOST_VALUES:
            what = f"{len(values)} different numbers" if whole.all() else "numbers that are not whole"
            raise InputError(
                f"{table.name}: the target {target.name!r} has {what}, and problem = classification takes at "
                f"most {MOST_VALUES} classes: set problem=regression, or choose another target."
            )
        names = tuple(str(int(value)) for value in values)
    else:
        texts = [str(text).lower() if target.kind == "boolean" else str(text) for text in target.texts]
        names = sorted_names(set(texts))
        labels = numbered(texts, names)
    if len(names) < 2:
        raise InputError(
            f"{table.name}: the target {target.name!r} is {names[0]!r} in every row: there must be two "
            f"classes or more."
        )
    return labels.astype(np.int64), names


def known_classes(table: Table, target: Column, classes: Sequence[str]) -> NDArray[np.int64]:
    """The label of each row, where the classes are known."""
    table.check_complete(target, "data.target")
    texts = [str(text).lower() if target.kind == "boolean" else str(text) for text in target.texts]
    if target.kind == "number":
        texts = [plain_text(float(number)) for number in target.numbers]
    for row, text in enumerate(texts):
        if text not in classes:
            raise InputError(
                f"{table.name}: the target {target.name!r} is {text!r} in {table.place(row)}, but the "
                f"classes of the training data are {listed(classes)}: correct it, or remove the row."
            )
    return numbered(texts, classes)

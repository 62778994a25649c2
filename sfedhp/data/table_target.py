"""What a table's target columns become: the labels of classes or several labels, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemName, ProblemOption
from sfedhp.data.columns import Column, Table, listed, numbers_of, plain_text, sorted_names
from sfedhp.data.encoding import MOST_VALUES
from sfedhp.data.owners import numbered
from sfedhp.data.targets import target_of


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
        labels, names = _classes(table, one)
        return labels, names, "classification", []
    for target in targets:
        if target.kind not in ("number", "boolean"):
            row = next(place for place, text in enumerate(target.texts) if numbers_of([text]) is None)
            wanted = "several targets need" if problem == "auto" else f"problem = {problem} needs"
            raise InputError(
                f"{table.name}: the target {target.name!r} holds text ({target.texts[row]!r} in "
                f"{table.place(row)}), and {wanted} numbers: choose another column, or set "
                f"problem=classification."
            )
    named = listed([target.name for target in targets])
    name = f"{table.name}: the target {named if one is not None else f'[{named}]'}"
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

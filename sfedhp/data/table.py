"""Reads a user's table, `.csv`, `.tsv` or `.parquet`: the role and the encoding of each column."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemName, ProblemOption
from sfedhp.data.columns import Column, Table, listed, sorted_names
from sfedhp.data.csv_file import read_csv
from sfedhp.data.encoding import Encoding, notes_on
from sfedhp.data.options import TABLE_KEYS, DataOptions
from sfedhp.data.owners import Owners, edges_of_clients, numbered
from sfedhp.data.parquet_file import read_parquet
from sfedhp.data.pool import Names, Pool
from sfedhp.data.table_target import known_classes, target_of_table

_READERS = {".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet}
SUFFIXES = tuple(_READERS)
_TESTS = {"true": True, "1": True, "false": False, "0": False}


def is_table(source: str) -> bool:
    """Whether a source is a table with named columns, by its suffix; upper case is accepted."""
    return source.lower().endswith(SUFFIXES)


def check_table_options(options: DataOptions, table: bool) -> None:
    """Refuse options that contradict the source or one another.

    Args:
        options: as given.
        table: whether the source has columns with names.

    Raises:
        InputError: names the options.
    """
    if not table:
        for key in TABLE_KEYS:
            if getattr(options, key) is not None:
                raise InputError(
                    f"data.{key} is for tables ({', '.join(SUFFIXES)}), and data.source = "
                    f"{options.source!r} is not a table: save that as one, or leave data.{key} out."
                )
        return
    if options.client_column is None and options.partition == "given":
        raise InputError("data.partition = 'given' needs data.client_column for a table: name the column.")
    if options.client_column is not None and options.partition not in ("auto", "given"):
        raise InputError(
            f"data.client_column says who holds which row, and so does data.partition = "
            f"{options.partition!r}: leave one out."
        )
    if options.edge_column is not None and options.client_column is None:
        raise InputError("data.edge_column needs data.client_column: name the column of the clients too.")
    if is_table(options.source) and options.scale not in ("auto", "standard", "none"):
        raise InputError(f"data.scale = {options.scale!r} is for images: use standard or none for a table.")


def read_columns(path: Path) -> Table:
    """The columns of the file as they are.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    return _READERS[path.suffix.lower()](path)


def read_table(path: Path, options: DataOptions, problem: ProblemOption = "auto") -> Pool:
    """The rows of the file, its columns turned into numbers as `options` say.

    Args:
        path: of the file.
        options: what each column is for.
        problem: what is predicted; "auto": as the target says.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    return pool_of_table(read_columns(path), options, problem)


def pool_of_table(table: Table, options: DataOptions, problem: ProblemOption = "auto") -> Pool:
    """The rows of a table, its columns turned into numbers as `options` say.

    Args:
        table: as read.
        options: what each column is for.
        problem: what is predicted; "auto": as the target says.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    if not options.target and problem != "reconstruction":
        names = listed([column.name for column in table.columns])
        raise InputError(f"{table.name} needs data.target=COLUMN, what to predict; its columns are {names}.")
    roles = _roles(table, options)
    targets = [table.find("data.target", name) for name in _target_names(options)]
    others = {*(column.name for column in (*roles.values(), *targets)), *(options.drop or ())}
    encoding = Encoding.of(table, others)
    labels, classes, resolved, target_notes = target_of_table(table, targets, problem)
    client, clients = _named(table, roles, "client_column")
    edge, edges = _named(table, roles, "edge_column")
    test = _tests(table, roles.get("test_column"))
    edge_of = None
    if client is not None and edge is not None:
        edge_of = edges_of_clients(table.name, Owners(client, clients), Owners(edge, edges))
        # Ids go edge by edge, so that clients take their seats in order.
        order = np.argsort(edge_of, kind="stable")
        client, edge_of = np.argsort(order)[client], edge_of[order]
        clients = tuple(clients[old] for old in order)
    return Pool(
        name=table.name,
        inputs=encoding.apply(table),
        labels=labels,
        classes=len(classes) if resolved == "classification" else 0,
        client=client,
        test=test,
        notes=(*notes_on(table, encoding), *target_notes),
        names=Names(encoding.inputs, classes, clients, edges, _target_names(options)),
        encoding=encoding,
        edge_of=edge_of,
        edge_source=f"data.edge_column = {options.edge_column!r}",
        problem=resolved,
    )


class TableLike(NamedTuple):
    """The encoding, target and classes that two tables must share, so that one model fits both."""

    encoding: Encoding  # of the columns
    classes: tuple[str, ...]  # their names, in the order of the labels
    targets: tuple[str, ...]  # the columns to predict
    problem: ProblemName = "classification"


def read_table_like(path: Path, options: DataOptions, like: TableLike) -> Pool:
    """The rows of one client's file, with columns encoded like those of another table.

    Args:
        path: the file. Columns that the encoding does not name are not read.
        options: `test_column` is used, if the file has it.
        like: of the other table.

    Raises:
        InputError: one sentence on the first thing that is wrong.
    """
    encoding, classes, names, problem = like
    table = read_columns(path)
    named = {column.name: column for column in table.columns}
    is_classes = problem == "classification"
    targets = [] if problem == "reconstruction" else [table.find("data.target", name) for name in names]
    if is_classes:
        labels: NDArray[Any] = known_classes(table, targets[0], classes)
    else:
        labels, *_ = target_of_table(table, targets, problem)
    return Pool(
        name=table.name,
        inputs=encoding.apply(table),
        labels=labels,
        classes=len(classes) if is_classes else 0,
        test=_tests(table, named.get(options.test_column or "")),
        names=Names(encoding.inputs, tuple(classes), targets=() if is_classes else names),
        encoding=encoding,
        problem=problem,
    )


def _roles(table: Table, options: DataOptions) -> dict[str, Column]:
    """The columns that are not inputs, by the option that names them."""
    keys = ("client_column", "edge_column", "test_column")
    given = {key: getattr(options, key) for key in keys if getattr(options, key) is not None}
    roles = {key: table.find(f"data.{key}", name) for key, name in given.items()}
    taken: dict[str, str] = {}
    for key, names in (("drop", options.drop or ()), ("target", _target_names(options))):
        for name in names:
            table.find(f"data.{key}", name)
            if name in taken:
                both = (
                    f"data.{taken[name]} and data.{key} both name"
                    if taken[name] != key
                    else f"data.{key} twice names"
                )
                raise InputError(f"{both} the column {name!r}: a column has one use.")
            taken[name] = key
    for key, column in roles.items():
        if column.name in taken:
            raise InputError(
                f"data.{taken[column.name]} and data.{key} both name the column {column.name!r}: "
                f"a column has one use."
            )
        taken[column.name] = key
    return roles


def _target_names(options: DataOptions) -> tuple[str, ...]:
    target = options.target
    return (target,) if isinstance(target, str) else target or ()


def _named(
    table: Table, roles: Mapping[str, Column], key: str
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """The number of each row's client or edge, and their names in order; None if no column says so."""
    column = roles.get(key)
    if column is None:
        return None, ()
    table.check_complete(column, f"data.{key}")
    texts = [str(text) for text in column.texts]
    names = sorted_names(set(texts))
    return numbered(texts, names), names


def _tests(table: Table, column: Column | None) -> NDArray[np.bool_] | None:
    """Which rows are for testing."""
    if column is None:
        return None
    table.check_complete(column, "data.test_column")
    for row, text in enumerate(column.texts):
        if str(text).lower() not in _TESTS:
            raise InputError(
                f"{table.name}: column {column.name!r} has {text!r} in {table.place(row)}: write true or "
                f"false, or 1 or 0, for rows to test on and to train on."
            )
    return np.array([_TESTS[str(text).lower()] for text in column.texts], np.bool_)

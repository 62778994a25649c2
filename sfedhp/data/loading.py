"""Loading data and dividing it into a federation: named sources, files, arrays and datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sfedhp.core.edge_sizes import as_option, edge_sizes, shown
from sfedhp.core.errors import InputError
from sfedhp.core.options import check_options
from sfedhp.core.types import ProblemOption
from sfedhp.data.federation import Federation
from sfedhp.data.huggingface import pool_of_dataset
from sfedhp.data.npz import is_npz
from sfedhp.data.options import DataOptions
from sfedhp.data.partition import partition, resolved_partition
from sfedhp.data.pool import Pool, pool_of, with_classes
from sfedhp.data.registry import SYNTHETIC, is_file, is_folder, load
from sfedhp.data.seating import clients_to_hold_out, seat, seats_by_edge, sizes_of_source
from sfedhp.data.split import unlearnable_class
from sfedhp.data.table import TableLike, check_table_options, is_table, read_table_like

ARRAYS = "arrays"  # the recorded source of data that came from Python and not from a file


class Seats(TypedDict):
    """How many edges there are, and how many clients under each."""

    edges: int
    clients_per_edge: int | Sequence[int]


def federate(
    options: DataOptions,
    *,
    edges: int,
    clients_per_edge: int | Sequence[int],
    seed: int,
    folder: Path | str | None = None,
    classes: int | None = None,
    problem: ProblemOption = "auto",
    like: TableLike | None = None,
) -> tuple[Federation, DataOptions]:
    """Load a source, divide its rows among clients and clients among edges; also the resolved options.

    Args:
        options: the source, and who holds what of it.
        edges: servers between the cloud and the clients; where the data names them, it decides, and another
            number than the default is refused.
        clients_per_edge: seats under all of them, or a list with those of each; likewise.
        seed: decides every draw.
        folder: of the published image sets; None: as `data_folder` says.
        classes: of a user's file, where they are known; None: as many as its labels reach.
        problem: what is predicted; "auto": as the labels say.
        like: the table of which the user's is a part, where `classes` are known.

    Raises:
        InputError: one sentence on what is wrong and what to do.
    """
    _check(options, seed, table=is_table(options.source))
    if options.source == ARRAYS:
        raise InputError(
            "This data came from Python arrays: give them again with from_arrays or from_dataset."
        )
    if is_file(options.source) or is_folder(options.source):
        # A run may be resumed from another folder.
        options = dataclasses.replace(options, source=str(Path(options.source).expanduser().absolute()))
    sizes = edge_sizes(edges, clients_per_edge)
    if like is not None and is_table(options.source):
        pool = read_table_like(Path(options.source), options, like)
    else:
        pool = load(options, clients=sum(sizes), seed=seed, folder=folder, problem=problem)
    if is_npz(options.source):
        pool = with_classes(pool, classes)
    elif is_table(options.source) and classes is not None and like is None:
        raise InputError(
            f"{pool.name} is a table, but the federation's kits do not know its columns: make the "
            f"kits where all columns and categories are known (data.source=TABLE), or give an .npz."
        )
    own = classes is None and options.source != SYNTHETIC and pool.counts is None
    return _assemble(pool, options, edges, clients_per_edge, seed, own=own)


def from_arrays(
    inputs: Any,
    labels: Any = None,
    *,
    client: Any = None,
    edge: Any = None,
    test: Any = None,
    options: DataOptions | None = None,
    edges: int,
    clients_per_edge: int | Sequence[int],
    seed: int,
    problem: ProblemOption = "auto",
) -> tuple[Federation, DataOptions]:
    """A federation of a user's arrays; also the resolved options.

    Args:
        inputs: (rows, *shape), uint8 images or numbers.
        labels: (rows,) integers from 0 for classes, (rows,) or (rows, targets) floats for numbers, (rows,
            labels) of 0 and 1 for several labels; None for a reconstruction.
        client: (rows,), who holds each row, integers or text; None: `options.partition` decides.
        edge: (rows,), the edge of that client, likewise; None: `options.edge_order` decides.
        test: (rows,) of bool, the rows to test on; None: `options` decides.
        options: who holds what; None: the defaults.
        edges: servers between the cloud and the clients; with `edge` as in `federate`.
        clients_per_edge: seats under all of them, or a list with those of each; likewise.
        seed: decides every draw.
        problem: what is predicted; "auto": as the labels say.

    Raises:
        InputError: one sentence on what is wrong and what to do.
    """
    if labels is None and problem != "reconstruction":
        raise InputError("The data has no labels: give them, or set problem=reconstruction.")
    options = dataclasses.replace(options or DataOptions(), source=ARRAYS)
    _check(options, seed, table=False)
    pool = with_classes(pool_of("the data", inputs, labels, client, test, edge, problem), None)
    return _assemble(pool, options, edges, clients_per_edge, seed)


def from_huggingface(
    dataset: Any,
    *,
    options: DataOptions | None = None,
    problem: ProblemOption = "auto",
    seed: int,
    **seats: Unpack[Seats],
) -> tuple[Federation, DataOptions]:
    """The same for a Hugging Face `datasets.Dataset`: a column of images and a label, or columns of a table.

    Args:
        dataset: one split of it.
        options: name its columns as those of a table; the target is `label` by default.
        problem: what is predicted; "auto": as the target says.
        seed: decides every draw.
        seats: `edges` and `clients_per_edge`, as in `federate`.

    Raises:
        InputError: one sentence on what is wrong and what to do.
    """
    options = dataclasses.replace(options or DataOptions(), source=ARRAYS)
    _check(options, seed, table=True)
    pool, options = pool_of_dataset(dataset, options, problem)
    return _assemble(pool, options, seed=seed, **seats)


def from_dataset(dataset: Dataset[Any], **division: Any) -> tuple[Federation, DataOptions]:
    """The same for a torch `Dataset` of (input, label), which is read whole, once.

    Args:
        dataset: has a length, and gives a pair for each row number.
        division: all arguments of `from_arrays` but `inputs` and `labels`.

    Raises:
        InputError: one sentence on what is wrong and what to do.
    """
    try:
        rows = [dataset[row] for row in range(len(dataset))]  # type: ignore[arg-type]
        inputs, labels = [_row(pair[0]) for pair in rows], [_row(pair[1]) for pair in rows]
    except (TypeError, NotImplementedError, LookupError) as error:
        raise InputError(
            "The dataset must have a length and give pairs (input, label) by row number."
        ) from error
    return from_arrays(inputs, labels, **division)


def _row(value: Any) -> Tensor | NDArray[Any]:
    return value if isinstance(value, Tensor) else np.asarray(value)


def _check(options: DataOptions, seed: int, *, table: bool) -> None:
    check_options(options, "data.")
    check_table_options(options, table)
    if seed < 0:
        raise InputError(f"seed = {seed} is out of range: it must be at least 0.")


def _assemble(
    pool: Pool,
    options: DataOptions,
    edges: int,
    clients_per_edge: int | Sequence[int],
    seed: int,
    *,
    own: bool = True,
) -> tuple[Federation, DataOptions]:
    """Divide a pool; `own` says that it is all data of a user, not a source of this package or a part."""
    if resolved_partition(pool, options) != "given":
        # The partition decides who holds the rows: the source's names of clients and edges do not apply.
        pool = dataclasses.replace(pool, edge_of=None, names=pool.names._replace(clients=(), edges=()))
    given = edge_sizes(edges, clients_per_edge)
    named = sizes_of_source(pool, options, edges, clients_per_edge)
    sizes = named or given
    split, options = partition(pool, options, sizes=sizes, seed=seed)
    if pool.edge_of is None:
        group, groups = pool.strata
        holdings = np.stack([np.bincount(group[rows], minlength=groups) for rows in split.train])
        seats = seat(holdings, options.edge_order, sizes=sizes, seed=seed)
    else:
        seats = seats_by_edge(pool.edge_of)
    notes = [*pool.notes, *split.notes]
    if options.image_size is not None and pool.inputs.shape[-2:] != (options.image_size,) * 2:
        notes.append(f"data.image_size has no effect on {pool.name}, which is no folder of images: ignored.")
    if named and named != given:
        each = shown(as_option(named))
        notes.append(f"{pool.edge_source} gives edges = {len(named)} and clients_per_edge = {each}.")
    if pool.encoding is not None:
        options = dataclasses.replace(options, scale="standard" if options.scale == "auto" else options.scale)
    elif pool.inputs.dtype == np.uint8:
        options = dataclasses.replace(options, scale="unit" if options.scale == "auto" else options.scale)
    else:
        if options.scale in ("unit", "symmetric", "per_pixel"):
            notes.append(
                f"data.scale = {options.scale!r} is for images of uint8: floating inputs stay as they are."
            )
        standard = options.scale == "standard"
        options = dataclasses.replace(options, scale="standard" if standard else "none")
    federation = Federation(
        inputs=pool.inputs,
        labels=pool.labels,
        classes=pool.classes,
        train=split.train,
        test=split.test,
        validation=split.validation,
        seats=seats,
        notes=(),
        scale=options.scale,
        names=pool.names.printable(),
        encoding=pool.encoding,
        edge_sizes=named,
        problem=pool.problem,
    )
    clients = f"{len(split.train)} clients"
    if options.held_out:
        newcomers = clients_to_hold_out(federation.seats, options.held_out)
        federation = federation.without(newcomers)
        clients += f", {len(newcomers)} of which are held out"
    if own and pool.classes and (unlearnable := unlearnable_class(pool, federation.train, federation.test)):
        if pool.encoding is not None or pool.test is not None:
            raise InputError(unlearnable)
        notes.append(unlearnable)  # of a small class, whose only row was drawn for testing
    _check_target_varies(federation, pool.name)
    there = sum(sizes) - len(sizes) * options.held_out
    if empty := there - int((federation.seats >= 0).sum()):
        notes.append(f"{empty} of {there} seats are empty: {pool.name} has {clients}.")
    return dataclasses.replace(federation, notes=tuple(notes)), options


def _check_target_varies(federation: Federation, name: str) -> None:
    """Refuse a number to be predicted that is the same in all training rows."""
    scaling = federation.target_scaling
    if scaling is not None and not np.isfinite(scaling.spread).all():
        place = int((~np.isfinite(scaling.spread)).argmax())
        which = federation.names.targets[place] if federation.names.targets else str(place)
        raise InputError(
            f"{name}: the target {which} is the same in every training row, so there is nothing to learn: "
            f"choose another."
        )

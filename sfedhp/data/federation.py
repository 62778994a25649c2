"""A federation's data: which client holds which rows, and which edge it belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sfedhp.core.edge_sizes import as_option, edge_sizes, shown
from sfedhp.core.errors import InputError
from sfedhp.core.options import check_options
from sfedhp.data.encoding import Encoding
from sfedhp.data.huggingface import pool_of_dataset
from sfedhp.data.options import DataOptions, Scale
from sfedhp.data.partition import partition, resolved_partition
from sfedhp.data.pool import NO_NAMES, Names, Pool, Rows, pool_of, with_classes
from sfedhp.data.registry import FILES, SYNTHETIC, is_folder, load
from sfedhp.data.scaling import Scaling, scaling_of
from sfedhp.data.seating import clients_to_hold_out, seat, seats_by_edge, sizes_of_source
from sfedhp.data.split import unlearnable_class
from sfedhp.data.table import check_table_options, is_table

ARRAYS = "arrays"  # the recorded source of data that came from Python and not from a file


class Holding(NamedTuple):
    """What one client holds, as `sfedhp data show` draws it."""

    client: int
    edge: int
    train: tuple[int, ...]  # rows of each label
    test: tuple[int, ...]
    validation: tuple[int, ...]
    name: str = ""  # of the client, where the data has names
    edge_name: str = ""


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds what. Clients are known by their ids 0..n-1 and hold row numbers of one common pool."""

    inputs: NDArray[Any]  # (rows, *shape): uint8 images or floating rows
    labels: NDArray[np.int64]  # (rows,) from 0
    classes: int
    train: tuple[Rows, ...]  # row numbers of each client
    test: tuple[Rows, ...]
    validation: tuple[Rows, ...]  # may be empty arrays
    seats: NDArray[np.int64]  # (edges, seats of an edge): the client id on each, -1 for an empty one
    notes: tuple[str, ...]  # lines to print
    scale: Scale  # as resolved, never "auto"
    names: Names = NO_NAMES  # of a table's columns, classes, clients and edges
    encoding: Encoding | None = None  # as in `Pool`
    given_scaling: Scaling | None = None  # that others computed; None: it follows from the training rows
    edge_sizes: tuple[int, ...] = ()  # clients of each edge, also those held out, where the source says so

    def scaled(self, rows: Rows, dtype: DTypeLike) -> NDArray[Any]:
        """The inputs of these rows, ready for a model."""
        return self.scaling.apply(self.inputs[rows], np.dtype(dtype))

    def describe(self) -> list[Holding]:
        """What each client holds, edge by edge."""
        clients, edges = self.names.clients, self.names.edges
        return [
            Holding(
                int(client),
                edge,
                train=self._count(self.train[client]),
                test=self._count(self.test[client]),
                validation=self._count(self.validation[client]),
                name=clients[client] if clients else "",
                edge_name=edges[edge] if edges else "",
            )
            for edge, members in enumerate(self.seats)
            for client in members
            if client >= 0
        ]

    def without(self, clients: Collection[int]) -> Federation:
        """The federation without some clients; the others get new ids in their order.

        The seats of those clients stay empty. Seats at the end that are empty under every edge are removed:
        then all edges have equally many, which is computed faster.
        """
        stay = [client for client in range(len(self.train)) if client not in clients]
        renamed = {old: new for new, old in enumerate(stay)}
        seats = np.array([[renamed.get(int(client), -1) for client in edge] for edge in self.seats], np.int64)
        taken = np.flatnonzero((seats >= 0).any(0))
        train, test, validation = (
            tuple(held[client] for client in stay) for held in (self.train, self.test, self.validation)
        )
        return dataclasses.replace(
            self,
            train=train,
            test=test,
            validation=validation,
            seats=seats[:, : taken[-1] + 1],
            names=self.names._replace(clients=tuple(self.names.clients[client] for client in stay))
            if self.names.clients
            else self.names,
        )

    def check_seats(self, sizes: Sequence[int]) -> None:
        """Refuse an experiment of another size; it may have more seats per edge than the federation.

        Args:
            sizes: the seats of each edge of the experiment.

        Raises:
            InputError: says which size fits.
        """
        taken = [int(np.flatnonzero(row >= 0)[-1]) + 1 if (row >= 0).any() else 1 for row in self.seats]
        if len(taken) != len(sizes) or any(own > there for own, there in zip(taken, sizes, strict=True)):
            own, other = shown(as_option(taken)), shown(as_option(sizes))
            raise InputError(
                f"The federation has {len(taken)} × {own} seats (edges × clients), the experiment "
                f"{len(sizes)} × {other}: set edges = {len(taken)} and clients_per_edge = {own}."
            )

    def check_sampling(self, edges: int, clients: int) -> None:
        """Refuse to sample more members a round than have rows to train on.

        Raises:
            InputError: says how many there are.
        """
        rows = np.array([len(held) for held in self.train])
        training = (self.seats >= 0) & (rows[self.seats] > 0)
        there = {"edges": int(training.any(1).sum()), "clients": int(training.sum())}
        for members, drawn in (("edges", edges), ("clients", clients)):
            if drawn > there[members]:
                raise InputError(
                    f"sampled_{members} = {drawn} is more than the {members} that train, {there[members]}: "
                    f"lower it, or set 0 for all."
                )

    @cached_property
    def scaling(self) -> Scaling:
        """What is done to inputs before a model sees them."""
        if self.given_scaling is not None:
            return self.given_scaling
        are_numbers = None if self.encoding is None else self.encoding.are_numbers
        return scaling_of(self.scale, self.inputs, np.concatenate(self.train), are_numbers)

    def _count(self, rows: Rows) -> tuple[int, ...]:
        return tuple(np.bincount(self.labels[rows], minlength=self.classes).tolist())


def federate(
    options: DataOptions,
    *,
    edges: int,
    clients_per_edge: int | Sequence[int],
    seed: int,
    folder: Path | str | None = None,
    classes: int | None = None,
) -> tuple[Federation, DataOptions]:
    """Load a source, divide its rows among clients and assign these to edges; also the options as resolved.

    Args:
        options: the source, and who holds what of it.
        edges: servers between the cloud and the clients; where the data names them, it decides, and another
            number than the default is refused.
        clients_per_edge: seats under all of them, or a list with those of each; likewise.
        seed: decides every draw.
        folder: of the published image sets; None: as `data_folder` says.
        classes: of a user's file, where they are known; None: as many as its labels reach.

    Raises:
        InputError: one sentence on what is wrong and what to do.
    """
    _check(options, seed, table=is_table(options.source))
    if options.source == ARRAYS:
        raise InputError(
            "This data came from Python arrays: give them again with from_arrays or from_dataset."
        )
    if options.source.endswith(FILES) or is_folder(options.source):
        # A run may be resumed from another folder.
        options = dataclasses.replace(options, source=str(Path(options.source).expanduser().absolute()))
    sizes = edge_sizes(edges, clients_per_edge)
    pool = load(options, clients=sum(sizes), seed=seed, folder=folder)
    if options.source.endswith(".npz"):
        pool = with_classes(pool, classes)
    elif is_table(options.source) and classes is not None:
        raise InputError(
            f"{pool.name} is a table, and a client of a deployment cannot have its own yet: give an .npz."
        )
    own = classes is None and options.source != SYNTHETIC and pool.counts is None
    return _assemble(pool, options, edges, clients_per_edge, seed, own=own)


def from_arrays(
    inputs: Any,
    labels: Any,
    *,
    client: Any = None,
    edge: Any = None,
    test: Any = None,
    options: DataOptions | None = None,
    edges: int,
    clients_per_edge: int | Sequence[int],
    seed: int,
) -> tuple[Federation, DataOptions]:
    """A federation of a user's arrays; also the options as resolved.

    Args:
        inputs: (rows, *shape), uint8 images or numbers.
        labels: (rows,) integers from 0.
        client: (rows,), who holds each row, integers or text; None: `options.partition` decides.
        edge: (rows,), the edge of that client, likewise; None: `options.edge_order` decides.
        test: (rows,) of bool, the rows to test on; None: `options` decides.
        options: who holds what; None: the defaults.
        edges: servers between the cloud and the clients; with `edge` as in `federate`.
        clients_per_edge: seats under all of them, or a list with those of each; likewise.
        seed: decides every draw.

    Raises:
        InputError: one sentence on what is wrong and what to do.
    """
    options = dataclasses.replace(options or DataOptions(), source=ARRAYS)
    _check(options, seed, table=False)
    pool = with_classes(pool_of("the data", inputs, labels, client, test, edge), None)
    return _assemble(pool, options, edges, clients_per_edge, seed)


def from_huggingface(
    dataset: Any,
    *,
    options: DataOptions | None = None,
    edges: int,
    clients_per_edge: int | Sequence[int],
    seed: int,
) -> tuple[Federation, DataOptions]:
    """The same for a Hugging Face `datasets.Dataset`: a column of images and a label, or columns of a table.

    Args:
        dataset: one split of it.
        options: name its columns as those of a table; the target is `label` by default.
        edges: as in `federate`.
        clients_per_edge: likewise.
        seed: decides every draw.

    Raises:
        InputError: one sentence on what is wrong and what to do.
    """
    options = dataclasses.replace(options or DataOptions(), source=ARRAYS)
    _check(options, seed, table=True)
    pool, options = pool_of_dataset(dataset, options)
    return _assemble(pool, options, edges, clients_per_edge, seed)


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
        # Others hold the rows than those whom the source names.
        pool = dataclasses.replace(pool, edge_of=None, names=pool.names._replace(clients=(), edges=()))
    given = edge_sizes(edges, clients_per_edge)
    named = sizes_of_source(pool, options, edges, clients_per_edge)
    sizes = named or given
    split, options = partition(pool, options, clients=sum(sizes), seed=seed)
    if pool.edge_of is None:
        holdings = np.stack([np.bincount(pool.labels[rows], minlength=pool.classes) for rows in split.train])
        seats = seat(holdings, options.edge_order, sizes=sizes, seed=seed)
    else:
        seats = seats_by_edge(pool.edge_of)
    notes = [*pool.notes, *split.notes]
    if named and named != given:
        each = shown(as_option(named))
        notes.append(f"{pool.edge_source} gives edges = {len(named)} and clients_per_edge = {each}.")
    if pool.encoding is not None:
        options = dataclasses.replace(options, scale="standard" if options.scale == "auto" else options.scale)
    elif pool.inputs.dtype == np.uint8:
        options = dataclasses.replace(options, scale="unit" if options.scale == "auto" else options.scale)
    else:
        if options.scale == "per_pixel":
            notes.append("data.scale = 'per_pixel' is for images of uint8: floating inputs stay as they are.")
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
    )
    clients = f"{len(split.train)} clients"
    if options.held_out:
        newcomers = clients_to_hold_out(federation.seats, options.held_out)
        federation = federation.without(newcomers)
        clients += f", {len(newcomers)} of which are held out"
    if own and (unlearnable := unlearnable_class(pool, federation.train, federation.test)):
        if pool.encoding is not None or pool.test is not None:
            raise InputError(unlearnable)
        notes.append(unlearnable)  # of a small class, whose only row was drawn for testing
    there = sum(sizes) - len(sizes) * options.held_out
    if empty := there - int((federation.seats >= 0).sum()):
        notes.append(f"{empty} of {there} seats are empty: {pool.name} has {clients}.")
    return dataclasses.replace(federation, notes=tuple(notes)), options

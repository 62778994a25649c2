"""A federation's data: which client holds which rows, and which edge it belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfedhp.core.edge_sizes import as_option, shown
from sfedhp.core.errors import InputError
from sfedhp.core.types import ProblemName
from sfedhp.data.encoding import Encoding
from sfedhp.data.options import Scale
from sfedhp.data.pool import NO_NAMES, Names, Rows
from sfedhp.data.scaling import Scaling, scaling_of
from sfedhp.data.sums import Sums
from sfedhp.data.targets import Strata, strata_of


class Holding(NamedTuple):
    """The rows of one client by label, as `sfedhp data show` draws them."""

    client: int
    edge: int
    train: tuple[int, ...]  # rows of each label
    test: tuple[int, ...]
    validation: tuple[int, ...]
    name: str = ""  # of the client, if the data has names
    edge_name: str = ""


@dataclass(frozen=True, eq=False)
class Federation:
    """Which client holds which rows. Clients have ids 0..n-1 and hold row numbers of one common pool."""

    inputs: NDArray[Any]  # (rows, *shape): uint8 images or floating rows
    labels: NDArray[Any]  # (rows,) from 0 of classes, (rows, targets) of others; see `data.targets`
    classes: int  # 0 where no classes are predicted
    train: tuple[Rows, ...]  # row numbers of each client
    test: tuple[Rows, ...]
    validation: tuple[Rows, ...]  # may be empty arrays
    seats: NDArray[np.int64]  # (edges, seats of an edge): the client id on each, -1 for an empty one
    notes: tuple[str, ...]  # lines to print
    scale: Scale  # as resolved, never "auto"
    names: Names = NO_NAMES  # of a table's columns, classes, clients and edges
    encoding: Encoding | None = None  # as in `Pool`
    given_scaling: Scaling | None = None  # that others computed; None: it follows from the training rows
    edge_sizes: tuple[int, ...] = ()  # clients of each edge, including those held out, if the source says so
    problem: ProblemName = "classification"
    given_target_scaling: Scaling | None = None  # as `given_scaling`, for targets

    def scaled(self, rows: Rows, dtype: DTypeLike) -> NDArray[Any]:
        """The inputs of these rows, ready for a model."""
        return self.scaling.apply(self.inputs[rows], np.dtype(dtype))

    @property
    def outputs(self) -> int:
        """How many numbers a model must give for each row."""
        if self.problem == "reconstruction":
            return int(np.prod(self.inputs.shape[1:]))
        return self.classes or self.labels.shape[1]

    def targets(self, rows: Rows, dtype: DTypeLike) -> NDArray[Any]:
        """The labels of these rows as training uses them: numbers are standardized."""
        if self.problem == "reconstruction":
            return self.scaled(rows, dtype).reshape(len(rows), self.outputs)
        if self.target_scaling is None:
            return self.labels[rows]
        return self.target_scaling.apply(self.labels[rows], np.dtype(dtype))

    @cached_property
    def target_scaling(self) -> Scaling | None:
        """The scaling of regression targets, by the training rows of all clients; None for other problems."""
        if self.problem != "regression":
            return None
        if self.given_target_scaling is not None:
            return self.given_target_scaling
        return Scaling.of_floats("standard", Sums.of(self.labels[np.unique(np.concatenate(self.train))]))

    @cached_property
    def strata(self) -> Strata:
        """Groups of rows with similar labels: the classes, where these are predicted."""
        return Strata(self.labels, self.classes) if self.classes else strata_of(self.problem, self.labels)

    def describe(self) -> list[Holding]:
        """The rows of each client by label, edge by edge."""
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
        """The scaling of the inputs."""
        if self.given_scaling is not None:
            return self.given_scaling
        are_numbers = None if self.encoding is None else self.encoding.are_numbers
        return scaling_of(self.scale, self.inputs, np.concatenate(self.train), are_numbers)

    def _count(self, rows: Rows) -> tuple[int, ...]:
        return tuple(np.bincount(self.strata.group[rows], minlength=self.strata.groups).tolist())

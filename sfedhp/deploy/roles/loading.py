"""Reads from a kit what a role computes with: the network, its initial weights, and a client's own rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions, Federation, federate
from sfedhp.data.scaling import NEEDS_SUMS
from sfedhp.data.schema import Schema
from sfedhp.data.totals import Totals, TotalsShape
from sfedhp.deploy.messaging.acceptance import Acceptance
from sfedhp.deploy.site import INITIAL, Site
from sfedhp.nn.models import load_initial
from sfedhp.nn.network import Network
from sfedhp.nn.problems import PROBLEMS, problem_of
from sfedhp.nn.row_losses import LossOptions, row_loss_of
from sfedhp.nn.task import Task
from sfedhp.runs.build import (
    Rows,
    build_counting,
    build_loss,
    build_network,
    build_task,
    check_tokens,
    client_keys,
    client_rows,
    target_unit,
)
from sfedhp.runs.counting import Counting

# data options that a client takes from the federation unless it sets them
SHARED = ("scale", "test_share", "validation_per_label")


class Model(NamedTuple):
    """The network of a run, its initial weights and running statistics."""

    network: Network
    initial: Tensor  # (d,)
    statistics: Tensor  # (s,)


class ClientData(NamedTuple):
    """A client's own rows, to train on, to test and to validate with."""

    task: Task  # no leading axes
    test: Rows
    validation: Rows
    schema: Schema
    counting: Counting
    totals: Totals  # of its training rows


def load_model(site: Site, kit: Path) -> Model:
    """The network of a site, with the initial weights of its kit."""
    network = build_network(site.experiment, site.shape, site.width)
    return Model(network, *load_initial(network, kit / INITIAL, site.experiment.torch_dtype))


def acceptance(site: Site, network: Network) -> Acceptance:
    """The limits of what a server accepts from its members."""
    algorithm, limits = site.experiment.algorithm, site.limits
    of_edges = site.role == "cloud" and algorithm.tiers == 3
    return Acceptance(
        equal_weights=algorithm.weighting == "equal",
        rows_reported_once=not of_edges,
        max_rows=limits.max_rows,
        max_change=limits.max_change,
        clients=[site.clients_of(edge) for edge in range(site.experiment.edges)] if of_edges else (),
        variances=network.variances,
        sums=counting_of(site.experiment).shapes(site.width),
        totals_of=totals_shape(site) if site.sums else None,
    )


def totals_shape(site: Site) -> TotalsShape:
    """The shape of the totals that the clients of a site's federation report."""
    is_regression = problem_of(site.experiment.problem) is PROBLEMS["regression"]
    pixels = None if site.schema is None else site.schema.scaling.pixels
    return TotalsShape(site.shape, site.width if is_regression else 0, site.classes, pixels)


def read_totals(site: Site, values: Any) -> Totals:
    """The totals of all clients' rows, of what a server sent or a file holds.

    Raises:
        InputError: they cannot be those of this federation.
    """
    try:
        return Totals.from_dict(values, totals_shape(site), math.inf)
    except ValueError as error:
        raise InputError(f"The totals of all clients' rows cannot be used ({error}).") from None


def check_totals_arrived(site: Site, totals: Any) -> None:
    """Refuse to train or score a model while its inputs cannot be scaled.

    Args:
        site: of the role that would train or score.
        totals: of all clients' rows, as received; None before.

    Raises:
        InputError: the federation scales by them, and they have not arrived.
    """
    if site.sums and totals is None:
        raise InputError("The totals of all clients' rows have not arrived yet.")


def counting_of(
    experiment: Experiment, federation: Federation | None = None, totals: Totals | None = None
) -> Counting:
    """What is counted to evaluate models.

    Args:
        experiment: as resolved.
        federation: the client's data; None for a server, which needs to know what, and not in which unit.
        totals: of the rows of all clients, where its data is not that of all.

    Raises:
        InputError: a metric or the loss does not fit.
    """
    problem = problem_of(experiment.problem)
    if federation is None:
        return build_counting(experiment, problem, row_loss_of(LossOptions(), problem, ()), None)
    loss = build_loss(experiment, federation, totals.classes if totals else None)
    return build_counting(experiment, problem, loss, target_unit(federation))


def needs_totals(experiment: Experiment) -> bool:
    """Whether training needs figures of the rows of all clients: for scaling, or for the loss."""
    return (
        experiment.data.scale in NEEDS_SUMS
        or problem_of(experiment.problem) is PROBLEMS["regression"]
        or experiment.loss.class_weights == "balanced"
    )


def schema_of(site: Site, totals: Totals | None) -> Schema | None:
    """The schema of the data as a server knows it: from its kit, and from the totals of the clients.

    Args:
        site: the server's.
        totals: of all training rows; None: none are needed.
    """
    schema = site.schema
    if totals is None:
        return schema
    if schema is None:
        own = site.experiment.data.scale
        schema = Schema(
            shape=site.shape,
            classes=site.classes,
            scaling=totals.scaling(own, None),
            problem=problem_of(site.experiment.problem).name,
            targets=site.outputs,
        )
    are_numbers = None if schema.encoding is None else schema.encoding.are_numbers
    scaling = totals.scaling(schema.scaling.kind, are_numbers)
    return replace(schema, scaling=scaling, target_scaling=totals.target_scaling)


def check_own_data(experiment: Experiment) -> None:
    """Refuse clients with data of their own where the loss needs figures of the rows of all.

    Raises:
        InputError: it does.
    """
    if experiment.loss.class_weights == "balanced":
        raise InputError(
            "loss.class_weights = 'balanced' counts the classes of all clients, and this is the data of one: "
            "set sums = true in the federation file, and make new kits."
        )


def load_client(
    site: Site, network: Network, options: DataOptions | None, totals: Totals | None = None
) -> ClientData:
    """Load the data of a client.

    Args:
        site: the client's.
        network: the run's.
        options: of the client's own data; None: its share of the experiment's data.
        totals: of the training rows of all clients, where the federation scales by them; None: not known yet.

    Raises:
        InputError: the data cannot be read, or do not fit the federation's model.
    """
    experiment = site.experiment
    own = options is not None
    schema = site.schema
    federation, resolved = federate(
        options or experiment.data,
        edges=1 if own else experiment.edges,
        clients_per_edge=1 if own else experiment.clients_per_edge,
        seed=experiment.seed,
        classes=site.classes if own else None,
        like=schema.table if own and schema is not None and schema.encoding is not None else None,
        problem=experiment.problem,
    )
    if own and not site.sums:
        check_own_data(experiment)
    client = 0 if own else site.client
    _check(site, federation, client, own)
    found = Totals.of(federation, federation.train[client])
    from_kit = schema if own and not site.sums else None
    known = from_kit if totals is None else schema_of(site, totals)
    if known is not None and known.scaling.kind == federation.scale:
        # The scaling must not depend on the rows of one client only.
        federation = replace(federation, given_scaling=known.scaling)
    if known is not None and known.target_scaling is not None:
        federation = replace(federation, given_target_scaling=known.target_scaling)
    train, test, validation = (
        client_rows(federation, held[client], experiment.dtype)
        for held in (federation.train, federation.test, federation.validation)
    )
    check_tokens(network, train, test, validation)
    keys = client_keys(experiment, torch.tensor(site.client))
    counting = counting_of(experiment, federation, totals)
    task = build_task(experiment, network, train, keys, site.classes, counting.loss)
    return ClientData(task, test, validation, Schema.of(federation, resolved), counting, found)


def client_data_options(options: DataOptions, source: str) -> DataOptions:
    """The options of a client's own file, all of whose rows are the client's."""
    return replace(options, source=source, partition="iid")


def _check(site: Site, federation: Federation, client: int, own: bool) -> None:
    if not 0 <= client < len(federation.train):
        raise InputError(f"The experiment has no data for {site.name}: give it a file with data.source=…")
    if federation.inputs.shape[1:] != site.shape:
        raise InputError(
            f"Inputs of the data have shape {federation.inputs.shape[1:]}, but the federation's model "
            f"takes {site.shape}: give data of that shape."
        )
    if federation.outputs != site.width and not federation.classes:
        raise InputError(
            f"The data has {federation.outputs} targets, but the federation's model gives {site.width}: give "
            f"data with these targets."
        )
    if federation.classes > site.classes:
        raise InputError(
            f"The data has labels up to {federation.classes - 1}, but the federation's go to "
            f"{site.classes - 1}: give data with these labels."
        )
    if own and site.schema is not None:
        site.schema.scaling.check("The client's data", federation.inputs)
    for scale in {site.experiment.data.scale, federation.scale}.intersection(NEEDS_SUMS):
        if own and not site.sums and (site.schema is None or site.schema.scaling.kind != scale):
            raise InputError(
                f"data.scale = {scale!r} needs the rows of all clients, which no site has: set it in the "
                f"experiment of the federation, make new kits, and leave it out here."
            )

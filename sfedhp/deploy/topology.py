"""The sites of a federation, made from a federation file and an experiment."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.data.pool import NO_NAMES, Names
from sfedhp.data.registry import is_file
from sfedhp.data.schema import Schema
from sfedhp.deploy.federation_file import Address, FederationFile
from sfedhp.deploy.roles.loading import needs_totals
from sfedhp.deploy.site import INITIAL, Site, client_name, edge_name, write_site
from sfedhp.nn.network import Network
from sfedhp.nn.problems import CLASSIFICATION, PROBLEMS, Problem, problem_of
from sfedhp.privacy.accounting import library
from sfedhp.runs.build import build_loss, build_network, check_problem, initial_weights, probe_network
from sfedhp.runs.cautions import cautions
from sfedhp.runs.federation import federation_of
from sfedhp.runs.method_options import check_threshold, check_used, secure_price, with_schedule
from sfedhp.runs.privacy import check_network
from sfedhp.runs.tensor_files import write_tensors

_LAST_PORT = 65535


@dataclass(frozen=True)
class Layout:
    """All sites of a federation, where its servers listen, and the initial weights by name."""

    file: FederationFile
    cloud: Site
    edges: tuple[Site, ...]  # none for a two-tier method
    clients: tuple[Site, ...]
    addresses: tuple[Address, ...]  # of the edges
    initial: dict[str, Tensor]
    notes: tuple[str, ...] = ()  # lines to print

    @property
    def sites(self) -> tuple[Site, ...]:
        """The cloud, the edges and the clients."""
        return (self.cloud, *self.edges, *self.clients)

    def write(self, site: Site, kit: Path) -> None:
        """Write the site's description and the initial weights into its kit."""
        kit.mkdir(parents=True, exist_ok=True)
        write_site(site, kit)
        write_tensors(kit / INITIAL, self.initial)


def lay_out(file: FederationFile, experiment: Experiment) -> Layout:
    """The layout of a federation. The data is read where it is available, for its shape and its partition.

    Raises:
        InputError: the experiment cannot be deployed.
    """
    check_used(experiment)
    if experiment.attack.kind != "none":
        raise InputError(
            f"attack.kind = {experiment.attack.kind!r} cannot be deployed: members that misbehave are for "
            f"simulations; remove it."
        )
    check_threshold(experiment, file.limits.secure_threshold)
    experiment = with_schedule(experiment)
    if not experiment.algorithm.federated:
        raise InputError(
            f"algorithm = {experiment.algorithm_name} cannot be deployed: it sends no model, and is only for "
            f"comparison: choose another method, or simulate with `sfedhp run`."
        )
    if experiment.data.held_out:
        raise InputError(
            f"data.held_out = {experiment.data.held_out} cannot be deployed: every client of a deployment "
            f"takes part; remove it, or simulate with `sfedhp run`."
        )
    shape, classes, names, schema = tuple(file.inputs), file.classes, NO_NAMES, None
    federation = None
    outputs, problem = 0, CLASSIFICATION
    if file.inputs:
        outputs, problem = file.outputs, problem_of(experiment.problem)
        _check_predicted(file, problem)
        ids = iter(range(experiment.clients))
        seats = [[next(ids) for _ in range(size)] for size in experiment.edge_sizes]
    else:
        federation, experiment = federation_of(experiment)
        shape, classes, names = federation.inputs.shape[1:], federation.classes, federation.names
        outputs, problem = 0 if classes else federation.outputs, PROBLEMS[federation.problem]
        build_loss(experiment, federation)
        schema = Schema.of(federation, experiment.data)
        rows = zip(federation.seats.tolist(), experiment.edge_sizes, strict=True)
        seats = [row[:size] for row, size in rows]
    check_problem(experiment, problem)
    problem.metrics(experiment.evaluation.metrics or ())
    network = build_network(experiment, shape, outputs or classes)
    _check_privacy(experiment, network)
    sample = torch.zeros(2, *shape, dtype=experiment.torch_dtype)
    probe_network(experiment, network, sample, outputs or classes, problem)
    model, statistics = initial_weights(experiment, network)
    notes: tuple[str, ...] = tuple(filter(None, [secure_price(experiment)]))
    if federation is not None:
        notes = (*federation.notes, *cautions(experiment, federation, network, model, statistics))
    experiment = replace(
        experiment, model=replace(experiment.model, initial=type(experiment.model)().initial)
    )
    tiers = experiment.algorithm.tiers
    flat = tuple(client for row in seats for client in row) if tiers == 2 else ()
    shared = (file.name, experiment, file.limits, shape, classes)
    called = [_names_below(edge, row, names) for edge, row in enumerate(seats)]
    cloud = Site("cloud", "cloud", *shared, clients=flat, names=dict(ChainMap(*called)), schema=schema)
    edges = tuple(
        Site("edge", edge_name(edge), *shared, edge=edge, seat=edge, names=called[edge], schema=schema)
        for edge in range(experiment.edges)
    )
    clients = tuple(
        Site(
            "client",
            client_name(edge, seat),
            *shared,
            edge=edge,
            seat=seat if tiers == 3 else sum(experiment.edge_sizes[:edge]) + seat,
            client=client,
            names={each: called[edge][each] for each in [client_name(edge, seat)] if each in called[edge]},
            schema=schema,
        )
        for edge, row in enumerate(seats)
        for seat, client in enumerate(row)
    )
    servers = [file.cloud, *file.edges]
    if len(set(servers)) < len(servers):
        raise InputError("Two servers on one host have the same port: give each [[edges]] a port of its own.")
    edges = edges if tiers == 3 else ()
    sums = file.sums or (bool(file.inputs) and needs_totals(experiment))
    sites = [replace(site, outputs=outputs, sums=sums) for site in (cloud, *edges, *clients)]
    cloud, *members = _with_monitors(sites, file.monitor.port)
    edges, clients = tuple(members[: len(edges)]), tuple(members[len(edges) :])
    return Layout(
        file,
        cloud,
        edges,
        clients,
        file.addresses(experiment.edges) if tiers == 3 else (),
        network.state_dict(model, statistics),
        notes,
    )


def _check_privacy(experiment: Experiment, network: Network) -> None:
    """Refuse [privacy] where a deployment could not keep it.

    Raises:
        InputError: says what to set.
    """
    options = experiment.privacy
    check_network(options, network)
    if options.active:
        library()
    if options.epsilon and not options.active:
        raise InputError(
            f"privacy.epsilon = {options.epsilon:g} needs noise: set privacy.noise as `sfedhp check` says."
        )
    if options.epsilon and options.unit == "row" and experiment.evaluation.every > 1:
        raise InputError(
            "privacy.epsilon needs evaluation.every=1 in a deployment, where clients say with their scores "
            "what they have spent."
        )


def with_edges_of_data(file: FederationFile, experiment: Experiment) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment with the edges and clients that its data names, where the data is here; lines to print.

    Raises:
        InputError: the data cannot be used.
    """
    source = experiment.data.source
    if file.inputs or not is_file(source):
        return experiment, ()
    federation, resolved = federation_of(experiment)
    return resolved, federation.notes


def _check_predicted(file: FederationFile, problem: Problem) -> None:
    """Refuse kits without data whose numbers do not fit the problem.

    Raises:
        InputError: says what to write.
    """
    wanted = "classes" if problem is CLASSIFICATION else "outputs"
    if not getattr(file, wanted):
        raise InputError(f"problem = {problem.name} needs {wanted} in the federation file, beside inputs.")
    if problem is PROBLEMS["reconstruction"] and file.outputs != math.prod(file.inputs):
        raise InputError(
            f"outputs = {file.outputs} cannot be used: a reconstruction predicts the "
            f"{math.prod(file.inputs)} values of an input."
        )


def _names_below(edge: int, row: Sequence[int], names: Names) -> dict[str, str]:
    """The names of an edge and its clients in the data, by the names of their sites.

    Args:
        edge: its number.
        row: the ids of its clients, by seat; -1 for an empty seat.
        names: of the data.
    """
    found = {edge_name(edge): names.edges[edge]} if names.edges else {}
    if names.clients:
        found |= {
            client_name(edge, seat): names.clients[client] for seat, client in enumerate(row) if client >= 0
        }
    return found


def _with_monitors(sites: Sequence[Site], first: int) -> list[Site]:
    """The sites with the ports of their figures, one after another; unchanged where the first is 0.

    Raises:
        InputError: there are more sites than ports.
    """
    if not first:
        return list(sites)
    if first + len(sites) - 1 > _LAST_PORT:
        raise InputError(
            f"monitor.port = {first} is too high for {len(sites)} sites: set at most "
            f"{_LAST_PORT - len(sites) + 1}."
        )
    return [replace(site, monitor=first + place) for place, site in enumerate(sites)]

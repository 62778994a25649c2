"""From an experiment to a simulator: load, divide, stack, build."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, key
from sfedhp.core.scalars import PerRun
from sfedhp.data import Federation, federate, from_arrays, from_dataset
from sfedhp.data.federation import ARRAYS
from sfedhp.data.pool import check_names
from sfedhp.engine.memory import clients_that_fit, keep_freed_memory
from sfedhp.engine.ray import check_reachable, on_ray
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.network import Network
from sfedhp.runs.build import (
    Model,
    Rows,
    build_network,
    build_task,
    client_keys,
    initial_weights,
    probe_network,
    stacked_rows,
)
from sfedhp.runs.evaluation import Evaluator
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of

Data = Federation | Mapping[str, Any] | Dataset[Any]

FROM_PYTHON = "python"  # the recorded name of a model that came from Python


@dataclass(frozen=True)
class Prepared:
    """An experiment ready to run, or a stack of them that differ in seeds and in what a `PerRun` can hold."""

    experiments: tuple[Experiment, ...]  # with everything resolved
    federations: tuple[Federation, ...]
    simulator: Simulator  # with a runs axis where it is a stack
    evaluator: Evaluator

    @property
    def experiment(self) -> Experiment:
        """The only one, or the first of a stack."""
        return self.experiments[0]

    @property
    def federation(self) -> Federation:
        """The only one, or the first of a stack."""
        return self.federations[0]


def prepare(experiment: Experiment, data: Data | None = None, model: Model | None = None) -> Prepared:
    """Load the data, build the network and stack the clients.

    Args:
        experiment: what to run.
        data: instead of `experiment.data.source`: a `Federation`, a mapping of arrays named as in an npz
            (`inputs`, `labels`, optionally `client` and `test`), or a torch `Dataset` of (input, label).
        model: instead of `experiment.model.name`: a module, or a function that makes one.

    Raises:
        InputError: the experiment cannot be run as it is.
    """
    check_draws(experiment)
    if experiment.engine.kind == "ray":
        check_reachable(experiment.engine.address)
    return _assembled([_parts(*federation_of(experiment, data), model)], stacked=False)


def prepare_stack(experiments: Sequence[Experiment]) -> Prepared:
    """The same for several experiments that run as one stack; `stackable` says which can."""
    if experiments[0].engine.kind == "ray":
        raise InputError(
            "engine.kind = ray runs one experiment at a time: sweep with --at-once 1, or without Ray."
        )
    # Runs of one seed hold the same rows: they are read and divided once.
    divided: dict[Hashable, tuple[Federation, Experiment]] = {}
    parts = []
    for experiment in experiments:
        check_draws(experiment)
        same = (experiment.data, experiment.edges, experiment.clients_per_edge, experiment.seed)
        if same not in divided:
            divided[same] = federation_of(experiment)
        federation, resolved = divided[same]
        parts.append(_parts(federation, replace(experiment, data=resolved.data), None))
    return _assembled(parts, stacked=True)


def check_draws(experiment: Experiment) -> None:
    """Refuse a number of drawn members that the method would never look at.

    Raises:
        InputError: `sampled_clients` is set for a method of three tiers, or `sampled_edges` for one of two.
    """
    name, tiers = experiment.algorithm_name, experiment.algorithm.tiers
    idle, used = ("clients", "edges") if tiers == 3 else ("edges", "clients")
    if given := getattr(experiment, f"sampled_{idle}"):
        raise InputError(
            f"sampled_{idle} = {given} has no effect: {name}, a method of {tiers} tiers, draws {used} and "
            f"not {idle}; leave it out, or set sampled_{used}."
        )


def with_own_draws(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Experiments that one user set for methods of two tiers and of three; each takes the draws it has."""
    if len({each.algorithm.tiers for each in experiments}) == 1:
        return list(experiments)
    return [
        replace(each, sampled_clients=0) if each.algorithm.tiers == 3 else replace(each, sampled_edges=0)
        for each in experiments
    ]


class _Parts(NamedTuple):
    """One experiment's share of a stack."""

    experiment: Experiment
    federation: Federation
    network: Network
    initial: Tensor
    tail: Tensor
    train: Rows
    test: Rows
    validation: Rows


def _parts(federation: Federation, experiment: Experiment, model: Model | None) -> _Parts:
    if model is not None:
        experiment = replace(experiment, model=replace(experiment.model, name=FROM_PYTHON))
    network = build_network(experiment, federation.inputs.shape[1:], federation.classes, model)
    sample = torch.from_numpy(federation.scaled(federation.train[0][:2], experiment.dtype))
    sample = sample if len(sample) == 2 else sample.expand(2, *sample.shape[1:])
    probe_network(experiment, network, sample, federation.classes)
    initial, tail = initial_weights(experiment, network)
    held = (federation.train, federation.test, federation.validation)
    return _Parts(
        experiment,
        federation,
        network,
        initial,
        tail,
        *(stacked_rows(federation, rows, experiment.dtype) for rows in held),
    )


def _assembled(parts: Sequence[_Parts], stacked: bool) -> Prepared:
    """A simulator of these parts, on its device."""
    first = parts[0]
    experiment, network = first.experiment, first.network
    engine, device = experiment.engine, _device(experiment)
    for part in parts[1:]:
        network.check_fixed(part.network)
    if device.type == "cpu":
        keep_freed_memory()
    network.module.to(device)

    def together(tensors: Sequence[Tensor]) -> Tensor:
        return (torch.stack(list(tensors)) if stacked else tensors[0]).to(device)

    def rows(name: str) -> Rows:
        held = [getattr(part, name) for part in parts]
        width = max(each.labels.shape[-1] for each in held)
        return Rows(
            *(together(list(each)) for each in zip(*(_padded(one, width) for one in held), strict=True))
        )

    train, test, validation = rows("train"), rows("test"), rows("validation")
    algorithm = merged([part.experiment.algorithm for part in parts])
    ids = together([torch.from_numpy(part.federation.seats) for part in parts])
    keys = together([client_keys(part.experiment, torch.from_numpy(part.federation.seats)) for part in parts])
    task = build_task(experiment, network, train, keys, first.federation.classes)
    batch = min(experiment.batch_size or train.labels.shape[-1], train.labels.shape[-1])
    fit = clients_that_fit(network, task.inputs[(0,) * len(task.lead)][:1], batch, len(parts))
    at_once = engine.clients_at_once or min(fit, task.lead[-2:].numel())
    simulator = Simulator(
        algorithm,
        task,
        ids,
        together([part.initial for part in parts]),
        together([part.tail for part in parts]),
        together([key(part.experiment.seed, ROLES["draw"]) for part in parts]),
        sampled=experiment.sampled_edges if algorithm.tiers == 3 else experiment.sampled_clients,
        links={direction: link_of(experiment.wire, direction) for direction in Direction},
        clients_at_once=at_once,
        worker_factory=partial(on_ray, address=engine.address, actors=engine.actors)
        if engine.kind == "ray"
        else None,
    )
    evaluator = Evaluator(
        simulator,
        _arranged(simulator, test),
        _arranged(simulator, validation) if validation.labels.shape[-1] else None,
        experiment.evaluation,
        experiment.density_threshold,
    )
    # What memory decided is recorded: a run that is resumed with less of it still computes the same bits.
    engine = replace(engine, clients_at_once=at_once)
    return Prepared(
        tuple(replace(part.experiment, engine=engine) for part in parts),
        tuple(part.federation for part in parts),
        simulator,
        evaluator,
    )


def merged(algorithms: Sequence[Algorithm]) -> Algorithm:
    """One method for a stack of runs: what differs between them becomes a `PerRun`."""
    first = algorithms[0]
    apart = {
        option.name: [getattr(each, option.name) for each in algorithms]
        for option in dataclasses.fields(first)
        if any(getattr(each, option.name) != getattr(first, option.name) for each in algorithms)
    }
    return replace(first, **{name: PerRun(values) for name, values in apart.items()})


def stackable(experiment: Experiment) -> Hashable:
    """What must be equal for experiments to run as one stack: all but seeds and what a `PerRun` can hold."""
    algorithm = experiment.algorithm
    hints = typing.get_type_hints(type(algorithm))
    # A term that is absent (a plain 0) is left out of the computation, so only non-zeros go together.
    fixed = tuple(
        (option.name, bool(value) if PerRun in typing.get_args(hints[option.name]) else value)
        for option in dataclasses.fields(algorithm)
        for value in [getattr(algorithm, option.name)]
    )
    return (type(algorithm), fixed, replace(experiment, seed=0, algorithm=type(algorithm)()))


def federation_of(experiment: Experiment, data: Data | None = None) -> tuple[Federation, Experiment]:
    """Who holds what, and the experiment with its data options resolved.

    Raises:
        InputError: the data cannot be used, or more members are to be drawn than there are.
    """
    layout: dict[str, Any] = {
        "edges": experiment.edges,
        "clients_per_edge": experiment.clients_per_edge,
        "seed": experiment.seed,
    }
    if data is None:
        federation, options = federate(experiment.data, **layout)
    elif isinstance(data, Federation):
        data.check_seats(experiment.edges, experiment.clients_per_edge)
        federation, options = data, replace(experiment.data, source=ARRAYS)
    elif isinstance(data, Mapping):
        check_names("the data", data)
        federation, options = from_arrays(**data, options=experiment.data, **layout)
    else:
        federation, options = from_dataset(data, options=experiment.data, **layout)
    federation.check_drawn(experiment.sampled_edges, experiment.sampled_clients)
    return federation, replace(experiment, data=options)


def device_of(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU where there is one.

    Raises:
        InputError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device = {name!r} is not available here: use cpu, or auto.") from None
    return device


def _device(experiment: Experiment) -> torch.device:
    """Where this process computes."""
    if experiment.engine.kind == "process":
        return device_of(experiment.device)
    if experiment.device not in ("auto", "cpu"):
        raise InputError(
            f"engine.kind = ray computes on CPUs alone: set device = cpu instead of {experiment.device}, or "
            f"engine.kind = process."
        )
    return torch.device("cpu")


def _arranged(simulator: Simulator, rows: Rows) -> Rows:
    return Rows(*(simulator.seats.arrange(tensor) for tensor in rows))


def _padded(rows: Rows, width: int) -> Rows:
    """The same rows in a wider table."""
    more = width - rows.labels.shape[-1]
    if not more:
        return rows
    shape = (*rows.labels.shape[:-1], more, *rows.inputs.shape[3:])
    inputs = torch.cat([rows.inputs, rows.inputs.new_zeros(shape)], 2)
    return Rows(inputs, torch.cat([rows.labels, rows.labels.new_zeros(shape[:3])], 2), rows.sizes)

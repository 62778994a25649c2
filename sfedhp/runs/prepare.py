"""Prepares a simulator for an experiment: loads and divides data, stacks clients, builds the network."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms import Pooled
from sfedhp.config import Experiment
from sfedhp.core.attack import factors_of, flip_labels, malicious
from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, key
from sfedhp.data import Federation
from sfedhp.engine.memory import clients_that_fit, keep_freed_memory
from sfedhp.engine.seats import Seats
from sfedhp.engine.secure_sum import exchanges
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.losses import RowLoss
from sfedhp.nn.network import Network
from sfedhp.nn.problems import PROBLEMS
from sfedhp.nn.task import Task
from sfedhp.runs.build import (
    Model,
    Rows,
    build_counting,
    build_loss,
    build_network,
    build_task,
    check_problem,
    check_tokens,
    client_keys,
    initial_weights,
    pad_rows,
    pooled_rows,
    probe_network,
    stacked_rows,
    units_of_runs,
)
from sfedhp.runs.engine import check_engine, check_engine_of_stack, device_of_engine, worker_factory
from sfedhp.runs.evaluation import Clients, Evaluator
from sfedhp.runs.federation import Data, federation_of, with_data_of
from sfedhp.runs.method_options import check_used, secure_options, with_schedule
from sfedhp.runs.privacy import Budget, budgets_of
from sfedhp.runs.stacking import merge_algorithms
from sfedhp.wire.cost import clock_of
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of

FROM_PYTHON = "python"  # the recorded name of a model that came from Python


@dataclass(frozen=True)
class Prepared:
    """An experiment ready to run, or a stack of them that differ in seeds and in what a `PerRun` can hold."""

    experiments: tuple[Experiment, ...]  # with everything resolved
    federations: tuple[Federation, ...]
    simulator: Simulator  # with a runs axis for a stack
    evaluator: Evaluator
    budgets: tuple[Budget, ...] = ()  # one for each; (): they have no privacy

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
            (`inputs`, `labels`, optionally `client`, `edge` and `test`), or a torch `Dataset` of
            (input, label).
        model: instead of `experiment.model.name`: a module, or a function that makes one.

    Raises:
        InputError: the experiment cannot be run as it is.
    """
    check_used(experiment)
    check_engine(experiment.engine)
    federation, experiment = federation_of(experiment, data)
    return _assemble([_build_parts(experiment, federation, model)], stacked=False)


def prepare_stack(
    experiments: Sequence[Experiment], data: Data | None = None, model: Model | None = None
) -> Prepared:
    """The same for several experiments that run as one stack: those of equal `stack_key`.

    Raises:
        InputError: an experiment cannot be run as it is, or not in a stack.
    """
    check_engine_of_stack(experiments[0].engine)
    # Runs of one seed hold the same rows: they are read and divided once.
    divided: dict[Hashable, tuple[Federation, Experiment]] = {}
    parts = []
    for experiment in experiments:
        check_used(experiment)
        same = (
            *(experiment.data, experiment.problem, experiment.seed),
            *(experiment.edges, experiment.clients_per_edge),
        )
        if same not in divided:
            divided[same] = federation_of(experiment, data)
        federation, resolved = divided[same]
        parts.append(_build_parts(with_data_of(experiment, resolved), federation, model))
    return _assemble(parts, stacked=True)


def prepare_divided(
    experiments: Sequence[Experiment], federations: Sequence[Federation], model: Model | None
) -> Prepared:
    """A stack of resolved experiments, each with the rows of a federation of its own."""
    each = zip(experiments, federations, strict=True)
    return _assemble([_build_parts(*pair, model) for pair in each], stacked=True)


class _Parts(NamedTuple):
    """What one experiment adds to a stack."""

    experiment: Experiment
    federation: Federation
    network: Network
    loss: RowLoss
    initial: Tensor  # (d,)
    statistics: Tensor  # (s,)
    clients: Tensor  # (edges, clients per edge), the ids of those that train; -1: an empty seat
    rows: Rows  # that they train with
    train: Rows  # of each client of the federation, who are the same unless the rows are pooled
    test: Rows
    validation: Rows


def _build_parts(experiment: Experiment, federation: Federation, model: Model | None) -> _Parts:
    experiment = with_schedule(experiment)
    if model is not None:
        experiment = replace(experiment, model=replace(experiment.model, name=FROM_PYTHON))
    problem = PROBLEMS[federation.problem]
    check_problem(experiment, problem)
    problem.metrics(experiment.evaluation.metrics or ())
    loss = build_loss(experiment, federation)
    network = build_network(experiment, federation.inputs.shape[1:], federation.outputs, model)
    sample = torch.from_numpy(federation.scaled(federation.train[0][:2], experiment.dtype))
    sample = sample if len(sample) == 2 else sample.expand(2, *sample.shape[1:])
    probe_network(experiment, network, sample, federation.outputs, problem)
    initial, statistics = initial_weights(experiment, network)
    if experiment.model.initial:  # a run may be resumed from another folder
        path = str(Path(experiment.model.initial).expanduser().absolute())
        experiment = replace(experiment, model=replace(experiment.model, initial=path))
    train, test, validation = (
        stacked_rows(federation, rows, experiment.dtype)
        for rows in (federation.train, federation.test, federation.validation)
    )
    check_tokens(network, train, test, validation)
    clients, rows = torch.from_numpy(federation.seats), train
    if experiment.attack.kind == "label-flip":
        if not federation.classes:
            raise InputError(
                f"attack.kind = 'label-flip' needs classes, and this is problem = {federation.problem}: "
                f"choose another attack."
            )
        who = malicious(experiment.attack, experiment.seed, clients)
        rows = train._replace(labels=flip_labels(train.labels, federation.classes, who))
    if isinstance(experiment.algorithm, Pooled):
        experiment = _with_all_steps(experiment, int((clients >= 0).sum()))
        clients, rows = torch.zeros(1, 1, dtype=torch.int64), pooled_rows(rows)
    return _Parts(
        experiment, federation, network, loss, initial, statistics, clients, rows, train, test, validation
    )


def _with_all_steps(experiment: Experiment, clients: int) -> Experiment:
    """The experiment of a `Pooled` that makes the steps of all clients that would train in a round."""
    algorithm = experiment.algorithm
    assert isinstance(algorithm, Pooled)
    count = algorithm.clients or experiment.sampled_clients or clients
    return replace(experiment, algorithm=replace(algorithm, clients=count))


def _assemble(parts: Sequence[_Parts], stacked: bool) -> Prepared:
    """Put the parts of all experiments together, on the device; `stacked` gives them a runs axis."""
    experiment, federation, network = parts[0].experiment, parts[0].federation, parts[0].network
    for part in parts[1:]:
        network.check_fixed(part.network)
    if (device := device_of_engine(experiment)).type == "cpu":
        keep_freed_memory()
    network.module.to(device)

    def joined(tensors: Sequence[Tensor]) -> Tensor:
        return (torch.stack(list(tensors)) if stacked else tensors[0]).to(device)

    def joined_rows(held: Sequence[Rows]) -> Rows:
        width = max(rows.inputs.shape[2] for rows in held)
        padded = [pad_rows(rows, width) for rows in held]
        return Rows(*(joined(tensors) for tensors in zip(*padded, strict=True)))

    keys = [client_keys(part.experiment, part.clients) for part in parts]
    trained = joined_rows([part.rows for part in parts])
    task = build_task(experiment, network, trained, joined(keys), federation.classes, parts[0].loss)
    algorithm = merge_algorithms([part.experiment.algorithm for part in parts])
    # What memory decided is recorded: a run that is resumed with less of it still computes the same bits.
    engine = replace(experiment.engine, clients_at_once=_clients_at_once(experiment, task, len(parts)))
    turns = exchanges(experiment.secure)
    factors = [factors_of(experiment.attack, part.experiment.seed, part.clients) for part in parts]
    simulator = Simulator(
        algorithm=algorithm,
        task=task,
        ids=joined([part.clients for part in parts]),
        initial=joined([part.initial for part in parts]),
        statistics=joined([part.statistics for part in parts]),
        stream=joined([key(part.experiment.seed, ROLES["draw"]) for part in parts]),
        sampled=_sampled(experiment),
        links={direction: link_of(experiment.wire, direction) for direction in Direction},
        clients_at_once=engine.clients_at_once,
        aggregation=experiment.aggregation,
        late=experiment.late,
        path_seconds=clock_of(experiment.links, turns) if experiment.late.quorum else None,
        factors=joined(factors) if experiment.attack.factors != 1 else None,
        schedule=experiment.schedule,
        secure=secure_options(experiment),
        privacy=experiment.privacy,
        worker_factory=None if stacked else worker_factory(engine),
    )

    pooled, seats = None, simulator.seats
    if isinstance(algorithm, Pooled):
        # No client trains on these rows alone, but the model is evaluated on each client's own.
        train = joined_rows([part.train for part in parts])
        seats = Seats.of(train.sizes, algorithm.tiers, simulator.runs)
        alone = build_task(experiment, network, train, torch.zeros_like(train.sizes), federation.classes)
        pooled = Clients(alone.map(seats.arrange), seats)

    def arranged(rows: Rows) -> Rows:
        return Rows(*(seats.arrange(tensor) for tensor in rows))

    validation = joined_rows([part.validation for part in parts])
    lead = (pooled.task if pooled else simulator.task).lead
    unit = units_of_runs([part.federation for part in parts], len(lead) if stacked else None)
    evaluator = Evaluator(
        simulator=simulator,
        test=arranged(joined_rows([part.test for part in parts])),
        validation=arranged(validation) if validation.sizes.any() else None,
        options=experiment.evaluation,
        density_threshold=experiment.density_threshold,
        pooled=pooled,
        counting=build_counting(
            experiment, PROBLEMS[federation.problem], parts[0].loss, unit if unit is None else unit.to(device)
        ),
    )
    experiments = tuple(replace(part.experiment, engine=engine) for part in parts)
    federations, budgets = (part.federation for part in parts), budgets_of(experiments, simulator, stacked)
    return Prepared(experiments, tuple(federations), simulator, evaluator, budgets)


def _sampled(experiment: Experiment) -> int:
    """How many of the cloud's members are drawn in a round; 0: all."""
    return 0 if isinstance(experiment.algorithm, Pooled) else experiment.sampled_members


def _clients_at_once(experiment: Experiment, task: Task, runs: int) -> int:
    """How many clients of each run are computed together: as the user says, or as many as memory holds."""
    if experiment.engine.clients_at_once:
        return experiment.engine.clients_at_once
    rows = task.rows
    row = task.inputs[(0,) * len(task.lead)][:1]
    fit = clients_that_fit(task.network, row, min(experiment.batch_size or rows, rows), runs)
    return min(fit, task.lead[-2:].numel())

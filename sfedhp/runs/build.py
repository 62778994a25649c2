"""The network of an experiment, and the rows and task of a client or of a stack of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sfedhp.config import Experiment
from sfedhp.core.errors import InputError, UnsuitableMethodError
from sfedhp.core.keys import ROLES, key
from sfedhp.data import Federation
from sfedhp.nn.augmentation import check_augment
from sfedhp.nn.losses import RowLoss, cross_entropy_of_rows, mean_of
from sfedhp.nn.models import build, load_initial
from sfedhp.nn.network import Network
from sfedhp.nn.precision import check_precision
from sfedhp.nn.probe import probe, probe_tokens
from sfedhp.nn.problems import CLASSIFICATION, PROBLEMS, Problem
from sfedhp.nn.row_losses import LossOptions, probe_loss, row_loss_of
from sfedhp.nn.row_privacy import RowPrivacy
from sfedhp.nn.task import Task
from sfedhp.runs.counting import Counting

Model = nn.Module | Callable[..., nn.Module]
_PROBED = 3  # rows on which a loss is checked


class Rows(NamedTuple):
    """Rows of a client, or of every client of a stack, padded to the longest."""

    inputs: Tensor  # (*lead, rows, *shape)
    labels: Tensor  # (*lead, rows, *target)
    sizes: Tensor  # (*lead): how many rows are real

    @property
    def width(self) -> int:
        """The rows of each client, padding included."""
        return self.inputs.shape[self.sizes.ndim]


def build_network(
    experiment: Experiment, shape: Sequence[int], outputs: int, model: Model | None = None
) -> Network:
    """Build the experiment's network for inputs of this shape.

    Args:
        experiment: names the model, and decides its initial weights.
        shape: of one input.
        outputs: how many numbers it gives for each row: one for each class, label or target.
        model: the user's own module, or a function that makes one, instead of `experiment.model.name`.

    Raises:
        InputError: there is no such model, or it cannot be made for these inputs.
    """
    return build(
        experiment.model.name if model is None else model,
        shape=shape,
        classes=outputs,
        seed=experiment.seed,
        dtype=experiment.torch_dtype,
        features=experiment.algorithm.predicts_from_features,
    )


def probe_network(
    experiment: Experiment, network: Network, sample: Tensor, outputs: int, problem: Problem = CLASSIFICATION
) -> None:
    """Check that the network takes these rows (2, *shape) and gives what the method needs.

    Raises:
        InputError: it does not.
    """
    check_augment(experiment.data.augment, sample.shape[1:])
    what = {"classification": "classes", "multilabel": "labels", "regression": "targets"}
    wanted = None if experiment.algorithm.predicts_from_features else outputs
    probe(network, sample, wanted, what.get(problem.name, "values in each row"))


def check_problem(experiment: Experiment, problem: Problem) -> None:
    """Refuse a problem that the method does not solve, and a loss that it would not use.

    Raises:
        InputError: says what to choose.
    """
    name, solved = experiment.algorithm_name, experiment.algorithm.problems
    if solved and problem.name not in solved:
        raise UnsuitableMethodError(
            f"{name} is for problem = {' or '.join(solved)}, and this is {problem.name}: choose another "
            f"method."
        )
    if experiment.algorithm.predicts_from_features and experiment.loss != LossOptions():
        raise UnsuitableMethodError(f"{name} has a loss of its own: leave [loss] out.")


def build_loss(
    experiment: Experiment, federation: Federation, class_rows: Sequence[int] | None = None
) -> RowLoss:
    """The loss of a row, checked on some training rows.

    Args:
        experiment: names the loss.
        federation: has the rows.
        class_rows: training rows of each class over all clients; None: those of the federation.

    Raises:
        InputError: it cannot be used.
    """
    training = np.concatenate(federation.train)
    if class_rows is None:
        class_rows = []
    if federation.classes and not class_rows:
        class_rows = np.bincount(federation.labels[training], minlength=federation.classes).tolist()
    loss = row_loss_of(experiment.loss, PROBLEMS[federation.problem], class_rows)
    labels = torch.from_numpy(federation.targets(training[:_PROBED], experiment.dtype))
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(len(labels), federation.outputs, generator=generator, dtype=experiment.torch_dtype)
    probe_loss(loss, scores, labels)
    return loss


def build_counting(experiment: Experiment, problem: Problem, loss: RowLoss, unit: Tensor | None) -> Counting:
    """What is counted to evaluate the models of a run.

    Args:
        experiment: asks for metrics.
        problem: what is predicted.
        loss: of a row.
        unit: of the targets, as in `Counting`; None: they have none.

    Raises:
        InputError: a metric does not fit the problem.
    """
    metrics = problem.metrics(experiment.evaluation.metrics or ())
    return Counting(problem, metrics, loss, 1.0 if unit is None else unit)


def target_unit(federation: Federation) -> Tensor | None:
    """The deviation of each target in the training rows, (targets,); None if there are no numbers."""
    scaling = federation.target_scaling
    return None if scaling is None else torch.from_numpy(np.asarray(scaling.spread))


def units_of_runs(federations: Sequence[Federation], axes: int | None) -> Tensor | None:
    """The units of the targets of all runs, ready to multiply scores (*lead, rows, targets).

    Args:
        federations: of each run.
        axes: of `lead`, the first of which are the runs; None: there is one run and no such axis.
    """
    units = [unit for unit in map(target_unit, federations) if unit is not None]
    if not units:
        return None
    return units[0] if axes is None else torch.stack(units).view(len(units), *(1,) * axes, -1)


def check_tokens(network: Network, *held: Rows) -> None:
    """Check that a network that takes token ids gets integers, and none that its embedding lacks.

    Raises:
        InputError: it does not.
    """
    for rows in held:
        shape = rows.inputs.shape[rows.sizes.ndim + 1 :]
        if rows.inputs.numel() and network.dry_run(shape, rows.inputs.dtype).takes_integers:
            probe_tokens(network, rows.inputs.reshape(-1, *shape))


def initial_weights(experiment: Experiment, network: Network) -> tuple[Tensor, Tensor]:
    """Weights (d,) and statistics (s,) a run starts with: of `model.initial`, or the network's own.

    Raises:
        InputError: the file of initial weights cannot be used.
    """
    dtype = experiment.torch_dtype
    if experiment.model.initial:
        return load_initial(network, Path(experiment.model.initial).expanduser(), dtype)
    weights, statistics = network.initial()
    return weights.to(dtype), statistics.to(dtype)


def client_rows(federation: Federation, rows: NDArray[np.int64], dtype: str) -> Rows:
    """The rows of these numbers, scaled, for a client alone: no leading axes."""
    inputs = torch.from_numpy(np.ascontiguousarray(federation.scaled(rows, dtype)))
    labels = torch.from_numpy(np.ascontiguousarray(federation.targets(rows, dtype)))
    return Rows(inputs, labels, torch.tensor(len(rows)))


def stacked_rows(federation: Federation, held: Sequence[NDArray[np.int64]], dtype: str) -> Rows:
    """The rows each client holds, padded to the longest: (edges, clients_per_edge, rows, *shape)."""
    seats = federation.seats
    sizes = np.array([[len(held[client]) if client >= 0 else 0 for client in edge] for edge in seats])
    width = int(sizes.max())
    inputs = np.zeros((*seats.shape, width, *federation.inputs.shape[1:]), dtype)
    some = federation.targets(held[int(seats.max())][:1], dtype)
    labels = np.zeros((*seats.shape, width, *some.shape[1:]), some.dtype)
    for (edge, seat), client in np.ndenumerate(seats):
        if client >= 0:
            rows = held[int(client)]
            inputs[edge, seat, : len(rows)] = federation.scaled(rows, dtype)
            labels[edge, seat, : len(rows)] = federation.targets(rows, dtype)
    return Rows(*(torch.from_numpy(array) for array in (inputs, labels, sizes)))


def pad_rows(rows: Rows, width: int) -> Rows:
    """The same rows (edges, clients, rows, *shape) in a wider table."""
    more = width - rows.inputs.shape[2]

    def padded(held: Tensor) -> Tensor:
        return torch.cat([held, held.new_zeros(*held.shape[:2], more, *held.shape[3:])], 2)

    return Rows(padded(rows.inputs), padded(rows.labels), rows.sizes) if more else rows


def pooled_rows(rows: Rows) -> Rows:
    """The rows of all clients as those of a single one: (1, 1, rows, *shape)."""
    real = torch.arange(rows.labels.shape[2]) < rows.sizes.unsqueeze(-1)
    return Rows(rows.inputs[real][None, None], rows.labels[real][None, None], real.sum()[None, None])


def client_keys(experiment: Experiment, clients: Tensor) -> Tensor:
    """The key of each client's mini-batches, by its id (...)."""
    return key(experiment.seed, ROLES["client"], clients)


def build_task(
    experiment: Experiment,
    network: Network,
    train: Rows,
    keys: Tensor,
    classes: int,
    loss: RowLoss = cross_entropy_of_rows,
) -> Task:
    """What a client, or a stack of clients, minimizes.

    Args:
        experiment: with the batch size, the weight decay, τ, and the way gradients are computed.
        network: the run's.
        train: training rows (*lead, rows, *shape).
        keys: of the mini-batches, (*lead), as `client_keys` gives them.
        classes: of the federation's labels.
        loss: of a row.

    Raises:
        InputError: the precision does not fit the type, the device or the method.
    """
    check_precision(experiment.engine.precision, experiment.torch_dtype, train.inputs.device)
    if experiment.engine.precision != "float32" and experiment.algorithm.predicts_from_features:
        raise InputError(
            f"engine.precision = {experiment.engine.precision} cannot be used with "
            f"{experiment.algorithm_name}: its Gaussian processes invert matrices; set float32."
        )
    privacy = experiment.privacy
    return Task(
        network,
        train.inputs,
        train.labels,
        train.sizes,
        keys,
        experiment.batch_size,
        experiment.model.weight_decay,
        min_rows=int(train.sizes[train.sizes > 0].min()),
        classes=classes,
        force_autograd=experiment.engine.inner == "plain",
        density_threshold=experiment.density_threshold,
        augment=experiment.data.augment,
        loss=mean_of(loss),
        precision=experiment.engine.precision,
        privacy=RowPrivacy(privacy.clip, privacy.noise) if privacy.in_gradients else None,
    )

"""A client that was not in the training gets a model of its own, from the global or an edge's model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sfedhp.algorithms import Algorithm
from sfedhp.config import Experiment
from sfedhp.core.errors import InputError
from sfedhp.core.factored import dense
from sfedhp.core.types import Clock
from sfedhp.data.federation import ARRAYS, Federation
from sfedhp.data.npz import read_npz
from sfedhp.data.pool import Pool, check_names, pool_of
from sfedhp.data.scaling import scaling_of
from sfedhp.data.split import split_owned
from sfedhp.nn.models import build
from sfedhp.nn.network import Network, reason_of
from sfedhp.nn.task import Task
from sfedhp.runs.build import Model, Rows, build_task, client_keys
from sfedhp.runs.folder import read_experiment
from sfedhp.runs.prepare import FROM_PYTHON, federation_of
from sfedhp.runs.results import Run

_AT_ONCE = 1024  # rows scored at a time
_HALVINGS = 10  # of the rates, at most
_FAR = 10  # times the norm of the start: steps that lead farther overshoot, even where they fit the rows


class Newcomer(NamedTuple):
    """A new client's own rows, scaled as the run's."""

    inputs: NDArray[Any]  # (rows, *shape)
    labels: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Personalized:
    """A newcomer's model and how much it gained."""

    model: nn.Module
    start: str  # the model it was made from: "global" or "edge-i"
    losses: dict[str, float]  # on the newcomer's training rows, of each model it could start from
    before: float  # accuracy of the start on the newcomer's test rows, percent
    after: float  # of its own model
    rows: int  # it trained on
    test_rows: int
    halvings: int  # of the method's rates, before steps with them gave this model
    loss: float  # of its own model on its training rows; above that of the start where no rate lowers it


def personalize(
    experiment: Experiment, models: Mapping[str, nn.Module], newcomer: Newcomer, start: str = "best"
) -> Personalized:
    """What the method's client does with its first message, done by a newcomer on all its own rows.

    For sFedHP these are K steps of the inner problem ℓ(θ) + γ₁ φ_ρ(θ) + λ₁/2 ‖θ − φ‖² from φ, the model it
    starts from. Nobody else is asked or changed. Running statistics start from the averaged ones.

    Rates that suit the training, where clients stay near their models, may overshoot on somebody new. If the
    steps end with a larger loss on the newcomer's training rows than they began with, they are taken again
    with all the method's rates halved. Where no rate helps (sparsity may cost fit), the run's own are used,
    unless they lead beyond a guess.

    Args:
        experiment: the run's; its method and the keys of that decide the steps. `batch_size` counts too:
            0 for all of the newcomer's rows in each step.
        models: the run's global and edges' models, as `shared_models` or `read_models` give them.
        newcomer: its rows.
        start: "best" (the model with the least loss on the newcomer's training rows), "edge" (the best of the
            edges' alone), or a name of `models`.

    Raises:
        InputError: there is no such model, the rows do not fit it, or the steps diverge with all these rates.
    """
    names = _candidates(_kept(dict(models), "This experiment", experiment), start)
    classes = _check_rows(newcomer, next(iter(models.values())), experiment.dtype)
    dtype = getattr(torch, experiment.dtype)
    inputs, test_inputs = (
        torch.from_numpy(part).to(dtype) for part in (newcomer.inputs, newcomer.test_inputs)
    )
    labels, test_labels = (torch.from_numpy(part) for part in (newcomer.labels, newcomer.test_labels))
    losses = {name: _score(models[name], inputs, labels)[1] for name in names}
    chosen = min(losses, key=lambda name: losses[name])
    network = Network(models[chosen])
    received, tail = (part.to(dtype) for part in network.initial())
    rows = Rows(inputs, labels, torch.tensor(len(labels)))
    keys = client_keys(experiment, torch.tensor(experiment.edges * experiment.clients_per_edge))
    task = replace(build_task(experiment, network, rows, keys, classes), statistics=tail)
    fitted = _fitted(experiment.algorithm, received, task, losses[chosen], math.log(classes))
    if fitted is None:
        raise InputError(
            f"The steps diverge on the newcomer's rows, and to divide the rates by up to {2**_HALVINGS} does "
            f"not help: set lower ones (algorithm.…_rate), or use the run's {chosen} model as it is."
        )
    model, halvings, loss = fitted
    before, after = (_score(each, test_inputs, test_labels)[0] for each in (models[chosen], model))
    return Personalized(model, chosen, losses, before, after, len(labels), len(test_labels), halvings, loss)


def _fitted(
    algorithm: Algorithm, received: Tensor, task: Task, start: float, guess: float
) -> tuple[nn.Module, int, float] | None:
    """The model of the largest rates that fits the rows as the start does; else the run's, if it is sound."""
    own = None
    for halvings in range(_HALVINGS + 1):
        model = _taught(_slower(algorithm, halvings), received, replace(task))
        # A pull to zero ends, at its strongest, in a guess; a loss beyond that is a divergence.
        if model is not None and (loss := _score(model, task.inputs, task.labels)[1]) <= max(start, guess):
            if loss <= start:
                return model, halvings, loss
            own = own if halvings else (model, halvings, loss)
    return own


def _taught(algorithm: Algorithm, received: Tensor, task: Task) -> nn.Module | None:
    """The model of a client after its first message; None where the steps overshoot beyond any use."""
    clock = Clock(0)
    try:
        result = algorithm.client_step(received, algorithm.client_start(received, task), task, clock)
        own = algorithm.personalize(received, result.personal, task, clock)
    except RuntimeError as error:
        if "overflow" in str(error):  # of a rate that the tensors' numbers cannot hold
            return None
        raise
    # A method without personal models still trains a copy of its own, the one it would have sent.
    model = dense(result.upload if own is None else own)
    assert task.statistics is not None, "they were lent and stay"
    near = model.double().norm() <= _FAR * received.double().norm().clamp(min=1)
    return task.network.build(model, task.statistics) if near and task.statistics.isfinite().all() else None


def _slower(algorithm: Algorithm, halvings: int) -> Algorithm:
    """The same method with smaller rates."""
    rates = [rule.rate for rule in algorithm.step_rules()]
    return replace(algorithm, **{rate.name: rate.value / 2**halvings for rate in rates})


def shared_models(run: Run) -> dict[str, nn.Module]:
    """The models of a run that a newcomer can start from, by name: `global` and `edge-i`.

    Raises:
        InputError: the method has none.
    """
    found = {"global": run.global_model} | {f"edge-{edge}": each for edge, each in enumerate(run.edge_models)}
    return _kept({name: each for name, each in found.items() if each is not None}, "This run", run.experiment)


def read_models(folder: Path, shape: Sequence[int], model: Model | None = None) -> dict[str, nn.Module]:
    """The same from the folder of a run; its data need not be here.

    Args:
        folder: the run's.
        shape: of one input.
        model: the user's own module, where the run had one from Python.

    Raises:
        InputError: the folder holds no such models, or they take inputs of another shape.
    """
    experiment = read_experiment(folder)
    if experiment.model.name == FROM_PYTHON and model is None:
        raise InputError(
            f"The model of {folder} came from Python: call sfedhp.runs.newcomers.read_models with model=..."
        )
    if not (inside := folder / "models").is_dir():
        raise InputError(f"{folder} is not finished and has no models yet: let the run end first.")
    edges = sorted(inside.glob("edge-*.safetensors"), key=lambda path: int(path.stem.partition("-")[2]))
    files = [*inside.glob("global.safetensors"), *edges]
    found = {path.stem: _read(path, experiment, shape, model) for path in files}
    return _kept(found, str(folder), experiment)


def newcomer_of(experiment: Experiment, data: Mapping[str, Any] | Path | str) -> Newcomer:
    """A newcomer's rows from an npz or a mapping of arrays: `inputs`, `labels`, and `test` where it is known.

    Without `test` every so many rows are kept for testing, `data.test_share` of them. Images of uint8 are
    scaled as the run's were.

    Raises:
        InputError: the arrays are not what they must be, or hold the rows of several clients.
    """
    if isinstance(data, Mapping):
        check_names("the newcomer's data", data)
        pool = pool_of("the newcomer's data", **data)
    else:
        pool = read_npz(Path(data).expanduser())
    if pool.client is not None and len(np.unique(pool.client)) > 1:
        raise InputError(
            f"{pool.name} holds the rows of {len(np.unique(pool.client))} clients: give the rows of one."
        )
    owner = np.zeros(len(pool.labels), np.int64)
    options = replace(experiment.data, validation_per_label=0)
    split = split_owned(pool, owner, 1, options, np.random.default_rng(experiment.seed))
    train, test = split.train[0], split.test[0]
    return Newcomer(
        _scaled(pool, train, experiment),
        pool.labels[train],
        _scaled(pool, test, experiment),
        pool.labels[test],
    )


def hold_out(
    federation: Federation, clients: Sequence[int], dtype: str = "float32"
) -> tuple[Federation, tuple[Newcomer, ...]]:
    """A federation without some of its clients, and those clients as newcomers.

    The others keep their order and seats; scaling is by the rows of those that stay.

    Args:
        federation: who holds what.
        clients: the ids of those to hold out.
        dtype: of the newcomers' inputs.

    Raises:
        InputError: there is no such client, or nobody would be left.
    """
    stay = [client for client in range(len(federation.train)) if client not in clients]
    strange = sorted(set(clients) - set(range(len(federation.train))))
    if strange or not stay:
        what = f"there is no client {strange[0]}" if strange else "nobody would be left"
        raise InputError(
            f"These clients cannot be held out: {what}; the clients are 0 to {len(federation.train) - 1}."
        )
    rest = federation.without(clients)
    return rest, tuple(
        Newcomer(
            rest.scaled(federation.train[client], dtype),
            federation.labels[federation.train[client]],
            rest.scaled(federation.test[client], dtype),
            federation.labels[federation.test[client]],
        )
        for client in clients
    )


def _candidates(models: Mapping[str, nn.Module], start: str) -> list[str]:
    wanted = {
        "best": list(models),
        "edge": [name for name in models if name.startswith("edge-")],
    }.get(start, [start])
    if not wanted or any(name not in models for name in wanted):
        raise InputError(f"There is no model {start!r} to start from: use best, {', '.join(models)}.")
    return wanted


def _check_rows(newcomer: Newcomer, model: nn.Module, dtype: str) -> int:
    """How many classes the model knows, if the rows fit it."""
    sample = torch.from_numpy(newcomer.inputs[:1]).to(getattr(torch, dtype))
    try:
        with torch.no_grad():
            classes: int = model.eval()(sample).shape[-1]
    except Exception as error:  # a user's forward may raise anything
        raise InputError(
            f"The newcomer's inputs of shape {tuple(sample.shape[1:])} do not fit the run's model: give rows "
            f"like those it was trained on ({reason_of(error)})."
        ) from error
    largest = int(max(newcomer.labels.max(), newcomer.test_labels.max()))
    if largest >= classes:
        raise InputError(
            f"The newcomer's rows have a label {largest}, but the run's model knows {classes} classes, "
            f"0 to {classes - 1}: leave such rows out."
        )
    return classes


def _score(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy in percent, and the mean loss."""
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part) for part in torch.split(inputs, _AT_ONCE)])
        right = float((scores.argmax(-1) == labels).double().mean())
        return 100 * right, float(cross_entropy(scores.double(), labels))


def _kept(found: dict[str, nn.Module], where: str, experiment: Experiment) -> dict[str, nn.Module]:
    if not found or experiment.algorithm.predicts_from_features:
        raise InputError(
            f"{where} has no global or edge's model that predicts ({experiment.algorithm_name}), and a "
            f"newcomer needs one to start from: use a run of sfedhp, or of another method that has one."
        )
    return found


def _read(path: Path, experiment: Experiment, shape: Sequence[int], model: Model | None) -> nn.Module:
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is not a safetensors file ({error}): run the training again.") from None
    shapes = {name: value.shape for name, value in state.items()}
    # The file does not say how many classes there were: they are the number with which all shapes agree.
    lengths = sorted({length for size in shapes.values() for length in size})
    maker, dtype = experiment.model.name if model is None else model, getattr(torch, experiment.dtype)
    refusals = []
    for classes in lengths:
        try:
            network = build(maker, shape=shape, classes=classes, seed=0, dtype=dtype)
        except InputError as error:  # a number for which the model is not made
            refusals.append(error)
            continue
        if {name: value.shape for name, value in network.module.state_dict().items()} == shapes:
            network.module.load_state_dict(state)
            return network.module.eval()
    if lengths and len(refusals) == len(lengths):
        raise refusals[0]
    raise InputError(
        f"{path} is not a {experiment.model.name} for inputs of shape {tuple(shape)}: give the newcomer rows "
        f"like those the run was trained on."
    )


def _scaled(pool: Pool, rows: NDArray[np.int64], experiment: Experiment) -> NDArray[Any]:
    """The rows as the run saw its own: statistics are those of the run's training images."""
    inputs, kind = pool.inputs[rows], experiment.data.scale
    if inputs.dtype == np.uint8 and kind in ("standard", "per_pixel"):
        if experiment.data.source == ARRAYS:
            raise InputError(
                f"The run's data came from Python, so data.scale = {kind!r} cannot be repeated: scale the "
                f"newcomer's images yourself and give them as floats."
            )
        federation, _ = federation_of(experiment)
        scaling = scaling_of(kind, federation.inputs, np.concatenate(federation.train))
    else:
        scaling = scaling_of(kind, inputs, np.arange(len(inputs)))
    return scaling.apply(inputs, np.dtype(experiment.dtype))

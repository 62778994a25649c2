"""Warnings before the first round: inputs and models with which training usually fails.

The rules are in docs/concepts.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from sfedhp.algorithms import Algorithm
from sfedhp.algorithms.partly_personal import PartlyPersonal
from sfedhp.config import Experiment
from sfedhp.data import Federation
from sfedhp.nn.network import Network, split
from sfedhp.nn.parts import part
from sfedhp.runs.method_options import secure_price
from sfedhp.runs.prepare import Prepared

_SCORED: Final = ("classification", "multilabel")  # problems whose losses turn scores into probabilities
_ROWS: Final = 256  # training rows that are looked at
_SMALL: Final = 10.0  # inputs up to this size break no steps
_TOO_LARGE: Final = 100.0  # times the limit of a step: below, the loss's own curvature decides
_LARGER: Final = (1e3, 10.0)  # times the inputs, times the weights: scores that grow are not probabilities
_CLOSE: Final = 1e-3


def cautions_of(prepared: Prepared) -> list[str]:
    """The warnings before a run, or a stack of runs, starts; one sentence each."""
    simulator = prepared.simulator
    run = (0,) * simulator.runs
    model, statistics = simulator.initial[run], simulator.statistics[run]
    return cautions(prepared.experiment, prepared.federation, simulator.task.network, model, statistics)


def cautions(
    experiment: Experiment, federation: Federation, network: Network, model: Tensor, statistics: Tensor
) -> list[str]:
    """Like `cautions_of`, for parts of a run that are already prepared.

    Args:
        experiment: as resolved.
        federation: who holds what.
        network: of the run.
        model: the initial weights (d,).
        statistics: the initial running statistics (s,).
    """
    held = np.concatenate(federation.train)
    chosen = held[np.linspace(0, len(held) - 1, min(_ROWS, len(held))).astype(np.int64)]
    rows = torch.from_numpy(federation.scaled(chosen, experiment.dtype))
    found = []
    tokens = network.dry_run(rows.shape[1:], rows.dtype).takes_integers or any(
        isinstance(each, nn.Embedding | nn.EmbeddingBag) for each in network.module.modules()
    )
    if federation.scale == "none" and not tokens and not _starts_with_norm(network):
        found.append(large_inputs(experiment.algorithm, rows, federation.names.features))
    own_loss = ":" in experiment.loss.name  # the user's, which may want probabilities
    if federation.problem in _SCORED and not own_loss and not experiment.algorithm.predicts_from_features:
        inputs = rows.to(model.device)

        def scores(times_inputs: float, times_weights: float) -> Tensor:
            weights = split(times_weights * model, network.weights)
            given = inputs if tokens else times_inputs * inputs  # token ids cannot be larger
            return network.run(weights, statistics, given, torch.Size(), train=False)[0]

        found.append(probabilities(scores))
    found.append(secure_price(experiment))
    if isinstance(experiment.algorithm, PartlyPersonal):
        found.append(nothing_to_share(experiment.algorithm_name, experiment.algorithm, network))
    return [sentence for sentence in found if sentence is not None]


def nothing_to_share(name: str, algorithm: PartlyPersonal, network: Network) -> str | None:
    """A warning for a model of which the method would keep no part, or all parts, at clients."""
    own = part(network, algorithm.own, torch.device("cpu"))
    if not own.any():
        return f"The model has no {algorithm.own} layers for {name} to keep at clients: here it is FedAvg."
    if own.all():
        return (
            f"All weights of the model are in its {algorithm.own}, which {name} keeps at clients, so that "
            f"nothing is shared: choose a model with more layers."
        )
    return None


def large_inputs(algorithm: Algorithm, rows: Tensor, names: tuple[str, ...] = ()) -> str | None:
    """A warning for inputs for which the method's steps on data are far too large.

    The curvature of a linear layer's loss is at most h = λ_max(Σ x xᵀ/n)/2, and a step of rate η overshoots
    more each time where ηh > 2. Most losses are flatter, so only a hundred times that much counts.

    Args:
        algorithm: the method.
        rows: some inputs (rows, *shape), as the model gets them.
        names: of the columns, where they have some.
    """
    rates = [rule.rate for rule in algorithm.step_rules() if rule.uses_data]
    flat = rows.double().flatten(1)
    if not rates or flat.abs().max() <= _SMALL:
        return None
    rate = max(rates, key=lambda each: each.value)
    curvature = float(torch.linalg.matrix_norm(flat, 2)) ** 2 / len(flat) / 2
    excess = rate.value * curvature / 2
    if excess <= _TOO_LARGE:
        return None
    place = int(flat.square().mean(0).argmax())
    column = f"column {names[place]!r}" if names else f"input {place}"
    largest = float(flat[:, place].abs().max())
    return (
        f"The inputs are not scaled, and {column} reaches {largest:.3g}: steps of algorithm.{rate.name} = "
        f"{rate.value:g} are about {excess:.0e} times too large for them; set data.scale=standard."
    )


def probabilities(scores: Callable[[float, float], Tensor]) -> str | None:
    """A warning for a model that ends in a softmax or a sigmoid, which the loss applies itself.

    A log-softmax gives no warning: applied twice, it gives the same. Scores of other models may be between 0
    and 1 by chance, but they grow with the weights, and without a normalization with the inputs.

    Args:
        scores: of the model in evaluation mode, for some inputs times a number, and its initial weights
            times another.
    """
    inputs, weights = _LARGER
    with torch.no_grad():
        outputs = [scores(*each).double() for each in ((1.0, 1.0), (inputs, 1.0), (1.0, weights))]
    if any(each.ndim != 2 or not each.isfinite().all() for each in outputs):
        return None
    if not all(((each >= 0) & (each <= 1)).all() for each in outputs) or not (outputs[0] > 0).all():
        return None
    sums = outputs[0].sum(-1)
    end = "softmax" if outputs[0].shape[-1] > 1 and bool(((sums - 1).abs() < _CLOSE).all()) else "sigmoid"
    return (
        f"The model seems to end in a {end}, and the loss applies one itself, so it learns slowly or not at "
        f"all: leave the last {end} out of the model."
    )


def _starts_with_norm(network: Network) -> bool:
    """Whether the first layer with weights or statistics normalizes its inputs."""
    layers = [each for each in network.module.modules() if not [*each.children()]]
    first = next((each for each in layers if [*each.parameters(), *each.buffers()]), None)
    return first is not None and "Norm" in type(first).__name__

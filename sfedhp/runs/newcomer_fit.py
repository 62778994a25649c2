"""The steps of a newcomer from a model of the run, with lower rates if those of the run overshoot."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from torch import Tensor, nn

from sfedhp.algorithms import Algorithm
from sfedhp.algorithms.base import step_clients
from sfedhp.core.factored import Factored, dense
from sfedhp.core.types import Clock
from sfedhp.nn.task import Task
from sfedhp.runs.counting import Counting
from sfedhp.runs.divergence import is_overflow
from sfedhp.runs.newcomer_scores import evaluate

HALVINGS: Final = 10  # of the rates, at most
_FAR = 10  # times the norm of the start: steps that lead farther overshoot, even if they fit the rows


class Fit(NamedTuple):
    """A newcomer's model, and the rates and loss of its steps."""

    model: nn.Module
    halvings: int
    loss: float


def fit(
    algorithm: Algorithm, received: Tensor, task: Task, start: float, guess: float, counting: Counting
) -> Fit | None:
    """The model of the largest rates that do not raise the loss; else of the run's rates, if it is usable.

    Args:
        algorithm: the method.
        received: the model the newcomer starts from.
        task: the newcomer's.
        start: the loss of that model on the newcomer's rows.
        guess: the loss of scores that are all 0; more than that is a divergence, for sparsity pulls at most
            there.
        counting: computes losses.
    """
    own = None
    for halvings in range(HALVINGS + 1):
        model = _train(_with_halved_rates(algorithm, halvings), received, replace(task))
        if model is None:
            continue
        loss = evaluate(model, task.inputs, task.labels, counting).loss
        if loss <= start:
            return Fit(model, halvings, loss)
        if halvings == 0 and loss <= guess:
            own = Fit(model, halvings, loss)
    return own


def _train(algorithm: Algorithm, received: Tensor, task: Task) -> nn.Module | None:
    """The model of a client after its first message; None if the steps lead too far from their start."""
    clock, message = Clock(0), _first_message(algorithm, received)
    try:
        result = step_clients(algorithm, message, algorithm.client_start(received, task), task, clock)
        own = algorithm.personalize(message, result.personal, task, clock)
    except RuntimeError as error:
        if is_overflow(error):
            return None
        raise
    # A method whose clients predict with something else than a model of their own still trains a copy: the
    # one it would send, before what is sent beside it.
    sent = dense(result.upload)[..., : received.shape[-1]]
    model = dense(own) if isinstance(own, Tensor | Factored) else sent
    assert task.statistics is not None, "the caller gave them"
    near = model.double().norm() <= _FAR * received.double().norm().clamp(min=1)
    return task.network.build(model, task.statistics) if near and task.statistics.isfinite().all() else None


def _first_message(algorithm: Algorithm, model: Tensor) -> Tensor:
    """The first message to a client from servers that start with this model."""
    message = algorithm.cloud_message(algorithm.cloud_start(model, 1), 1)[0]
    return algorithm.edge_message(algorithm.edge_start(message, 1), 1)[0] if algorithm.tiers == 3 else message


def _with_halved_rates(algorithm: Algorithm, halvings: int) -> Algorithm:
    """The same method, with each rate of its steps halved this many times."""
    rates = [rule.rate for rule in algorithm.step_rules()]
    return replace(algorithm, **{rate.name: rate.value / 2**halvings for rate in rates})

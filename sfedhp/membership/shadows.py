"""Shadow runs: the same experiment on other splits of each client's rows, many at once in one stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfedhp.config import Experiment
from sfedhp.data import Federation
from sfedhp.engine.memory import runs_that_fit
from sfedhp.runs.build import Model, Rows, stacked_rows
from sfedhp.runs.prepare import Prepared, prepare_divided

Pools = Sequence[NDArray[np.int64]]


def pools_of(federation: Federation) -> Pools:
    """The rows of each client that an attacker asks about: its training rows, then its test rows."""
    return [np.concatenate(pair) for pair in zip(federation.train, federation.test, strict=True)]


def division(federation: Federation, shadow: int, seed: int) -> Federation:
    """The federation with each client's rows divided anew into as many training and test rows as before.

    Args:
        federation: of the run.
        shadow: the number of the shadow run.
        seed: of the divisions.
    """
    train, test = [], []
    for client, pool in enumerate(pools_of(federation)):
        mixed = np.random.default_rng((seed, shadow, client)).permutation(pool)
        count = len(federation.train[client])
        train.append(np.sort(mixed[:count]))
        test.append(np.sort(mixed[count:]))
    return replace(federation, train=tuple(train), test=tuple(test))


def shadow_losses(
    experiment: Experiment, federations: Sequence[Federation], pools: Pools, rounds: int, model: Model | None
) -> Iterator[dict[str, Tensor]]:
    """The loss of every row of the clients' pools, (clients, rows), under each kind of model of each run.

    Args:
        experiment: of the run that is audited, as resolved.
        federations: one for each shadow run.
        pools: the rows of each client, in the order of the losses.
        rounds: how many the run has done.
        model: the user's own, if the run was started with one from Python.
    """
    experiments = [
        replace(experiment, seed=experiment.seed + 1 + shadow, rounds=rounds)
        for shadow in range(len(federations))
    ]
    width = 1
    done = 0
    while done < len(experiments):
        some = slice(done, done + width)
        prepared = prepare_divided(experiments[some], federations[some], model)
        if done == 0:
            rows = sum(map(len, pools))
            width = max(1, runs_that_fit(prepared.simulator.task, rows))
        for _ in prepared.simulator.run(rounds):
            pass
        found = losses(prepared, pools)
        yield from (
            {kind: each[run] for kind, each in found.items()} for run in range(len(experiments[some]))
        )
        done = some.stop


def losses(prepared: Prepared, pools: Pools) -> dict[str, Tensor]:
    """The loss of every row of the clients' pools under each kind of model: (runs?, clients, rows).

    Args:
        prepared: a run or a stack, in the state that is asked.
        pools: the rows of each client, by its id; a row that only pads a shorter pool is NaN.
    """
    simulator, stacked = prepared.simulator, bool(prepared.simulator.runs)
    each = [stacked_rows(federation, pools, prepared.experiment.dtype) for federation in prepared.federations]
    joined = (torch.stack(parts) if stacked else parts[0] for parts in map(list, zip(*each, strict=True)))
    arranged = Rows(*(simulator.seats.arrange(tensor.to(simulator.initial.device)) for tensor in joined))
    found = prepared.evaluator.losses(arranged)
    seats = torch.from_numpy(prepared.federation.seats)
    order = simulator.seats.arrange(seats.expand(len(each), *seats.shape) if stacked else seats)
    ids = (order[0] if stacked else order).flatten()
    places = torch.argsort(ids)[(ids < 0).sum() :]
    axis = simulator.runs
    width = arranged.labels.shape[len(simulator.task.lead)]
    real = torch.arange(width) < arranged.sizes.cpu().unsqueeze(-1)
    return {
        kind: torch.where(real, value.double().cpu(), torch.nan).flatten(axis, -2).index_select(axis, places)
        for kind, value in found.items()
    }

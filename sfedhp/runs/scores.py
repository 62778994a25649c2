"""The scores of a run's models for each client and each class, computed once, at its end.

A run's folder has them as `clients.csv`, `classes.csv` and `confusion.json`. They follow the definition of
the history: the mean of a column of `clients.csv`, weighted by the test rows, is the history's accuracy.
Where no classes are predicted, there are `clients.csv` with the main metric instead, and `scores.json`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfedhp.data import Federation
from sfedhp.engine.state import State
from sfedhp.nn.problems import CLASSIFICATION, KINDS, Metric
from sfedhp.runs.counting import Scored
from sfedhp.runs.metrics import value_of
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.record_file import Row

NAMES: Final = ("name", "edge_name")  # more columns of clients, if the data has names

Matrix = Sequence[Sequence[int]]  # test rows by true class (first) and predicted class


class Scores(NamedTuple):
    """The scores of one run's models for each client and each class, after a round."""

    round: int
    # In the order of edges and seats; None if a client or the method has no figure. In the folders of a
    # comparison each row has `alone`, the accuracy of the client's model trained alone.
    clients: list[Row]
    classes: list[Row]
    confusion: Mapping[str, Matrix]  # by kind of model; empty without classes
    metric: Metric = CLASSIFICATION.main  # what the figures of PM, EM and GM are

    @property
    def kinds(self) -> list[str]:
        """The kinds of models that have figures, PM first."""
        known = self.confusion or {
            kind for kind in KINDS if any(row[kind] is not None for row in self.clients)
        }
        return [kind for kind in KINDS if kind in known]

    @property
    def used(self) -> str:
        """The kind of model that a client would use: PM, else EM, else GM."""
        return next(iter(self.kinds), KINDS[0])

    def ranked_clients(self) -> list[Row]:
        """The clients from the lowest to the highest score, by the model that each would use.

        `worst_decile` is added: whether a client is one of the worst tenth, at least one. Clients without a
        figure are last.
        """
        kind = self.used
        known = sorted(
            (row for row in self.clients if row[kind] is not None),
            key=lambda row: row[kind],
            reverse=not self.metric.higher_is_better,
        )
        tenth = math.ceil(0.1 * len(known))
        return [
            *(row | {"worst_decile": place < tenth} for place, row in enumerate(known)),
            *(row | {"worst_decile": False} for row in self.clients if row[kind] is None),
        ]


def scores_of_runs(prepared: Prepared, runs: Iterable[tuple[int, State]]) -> dict[int, Scores]:
    """The scores of runs that ended, by their place in the stack.

    Args:
        prepared: the run, or the stack.
        runs: place in the stack and last good state of each.
    """
    scored: dict[int, tuple[State, dict[str, Scored]]] = {}  # most runs of a stack end in the same state
    found = {}
    for index, state in runs:
        if id(state) not in scored:
            scored[id(state)] = state, prepared.evaluator.score_test_rows(state)
        found[index] = _scores_of_run(prepared, index, state.round, scored[id(state)][1])
    return found


def _scores_of_run(prepared: Prepared, index: int, rounds: int, scored: Mapping[str, Scored]) -> Scores:
    """The scores of one run of a stack."""
    simulator, federation = prepared.simulator, prepared.federations[index]
    place = (index,) if simulator.runs else ()
    test, metric = prepared.evaluator.test, prepared.evaluator.counting.metrics[0]
    clients = _client_rows(
        federation,
        _positions(prepared),
        {
            kind: [
                figures[place].flatten().tolist()
                for figures in (value_of(metric, each.counts), each.counts.loss, each.counts.rows)
            ]
            for kind, each in scored.items()
        },
    )
    if metric != CLASSIFICATION.main:
        return Scores(rounds, clients, [], {}, metric)
    labels, sizes = test.labels[place].cpu(), test.sizes[place].cpu()
    real = torch.arange(labels.shape[-1]) < sizes.unsqueeze(-1)
    classes = federation.classes
    confusion = {
        kind: _confusion(labels[real], each.predicted[place].cpu()[real], classes)
        for kind, each in scored.items()
    }
    held = torch.bincount(labels[real], minlength=classes).tolist()
    by_class = _class_rows(held, confusion, federation.names.classes)
    return Scores(rounds, clients, by_class, confusion)


def _positions(prepared: Prepared) -> dict[tuple[int, int], int]:
    """The index of the client on each edge and seat among all clients of a run, as the method sees them."""
    seats = prepared.evaluator.seats
    numbers = torch.arange(seats.edges * seats.clients_per_edge, device=seats.taken.device)
    shape = (*(1,) * seats.runs, seats.edges, seats.clients_per_edge)
    seen = seats.arrange(numbers.reshape(shape)).flatten().tolist()
    return {divmod(number, seats.clients_per_edge): position for position, number in enumerate(seen)}


def _client_rows(
    federation: Federation,
    positions: Mapping[tuple[int, int], int],
    counts: Mapping[str, Sequence[Sequence[float]]],
) -> list[Row]:
    """A row for each client, edge by edge and seat by seat.

    Args:
        federation: who holds what.
        positions: of the clients in the counts, by edge and seat.
        counts: by kind of model: the main metric, summed loss and rows of each client.
    """
    table = []
    taken = np.argwhere(federation.seats >= 0).tolist()
    for holding, (edge, seat) in zip(federation.describe(), taken, strict=True):
        position = positions.get((edge, seat))
        figures: Row = dict.fromkeys((*KINDS, "loss"))
        for kind, (metric, loss, rows) in counts.items():
            if position is None or not rows[position]:
                continue
            figures[kind] = metric[position] if math.isfinite(metric[position]) else None
            mean = loss[position] / rows[position]
            if kind == next(iter(counts)) and math.isfinite(mean):  # the model that the client would use
                figures["loss"] = mean
        held = holding.train if federation.classes else ()
        labels = " ".join(str(label) for label, count in enumerate(held) if count)
        table.append(
            {"client": holding.client, "edge": edge, "seat": seat}
            | {"rows": sum(holding.train), "test_rows": sum(holding.test), "labels": labels}
            | figures
            | {"label_rows": " ".join(str(count) for count in held if count)}
            | {name: getattr(holding, name) for name in NAMES if getattr(holding, name)}
        )
    return table


def _class_rows(rows: Sequence[int], confusion: Mapping[str, Matrix], names: Sequence[str]) -> list[Row]:
    """The accuracy of each kind of model on the test rows of each class."""
    return [
        {"class": label, "test_rows": count}
        | {
            kind: 100 * confusion[kind][label][label] / count if kind in confusion and count else None
            for kind in KINDS
        }
        | ({"name": names[label]} if names else {})
        for label, count in enumerate(rows)
    ]


def _confusion(labels: Tensor, predicted: Tensor, classes: int) -> Matrix:
    """How many rows of each class are predicted as each class."""
    counted = torch.bincount(labels * classes + predicted, minlength=classes * classes)
    matrix: list[list[int]] = counted.view(classes, classes).tolist()
    return matrix

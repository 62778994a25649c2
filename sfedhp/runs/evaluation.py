"""Scores every kind of model of a simulation on the clients' own rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfedhp.config import EvaluationOptions
from sfedhp.core.factored import Factored, dense
from sfedhp.core.trees import tree_map
from sfedhp.core.types import Clock
from sfedhp.core.vectors import density
from sfedhp.engine.seats import Seats, spread_over
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.nn.losses import cross_entropy_of_rows
from sfedhp.nn.task import Task
from sfedhp.runs.build import Rows
from sfedhp.runs.counting import Counting, Scored, add
from sfedhp.runs.metrics import Counts, Total, client_metrics, mean_loss, micro, over_clients


class EvaluatedModel(NamedTuple):
    """A kind of model with the running statistics it is evaluated with, for every client."""

    kind: str  # of `KINDS`
    norm_statistics: str  # "averaged" or "local"
    parameters: Any  # what the method predicts with
    statistics: Tensor  # (*lead, s)


class Clients(NamedTuple):
    """Clients on whose rows models are evaluated."""

    task: Task  # as the method sees them
    seats: Seats


@dataclass(frozen=True)
class Evaluator:
    """Scores a simulator's models after a round."""

    simulator: Simulator
    test: Rows
    validation: Rows | None
    options: EvaluationOptions
    density_threshold: float
    counting: Counting = field(default_factory=Counting)
    rows_at_once: int = 512  # of each client
    pooled: Clients | None = None  # the clients whose rows were pooled; None: they are the simulator's

    def measure(self) -> list[dict[str, float]]:
        """The metrics of each run of the stack, as columns of its history."""
        columns: dict[str, Tensor] = {}
        total, metrics = self._total, self.counting.metrics
        train = Rows(self.task.inputs, self.task.labels, self.task.sizes)
        for model in self._models():
            kind, reported = model.kind, model.norm_statistics == self._reported
            main = metrics[0].column(kind)
            test = self._score(model, self.test).counts
            if self.task.network.s and kind != "pm":
                columns[f"{main}_{model.norm_statistics}"] = micro(metrics[0], test, total)
            if reported:
                for metric in metrics:
                    columns[metric.column(kind)] = micro(metric, test, total)
                    columns |= client_metrics(metric, kind, test, total)
                columns[f"{kind}_loss"] = mean_loss(test, total)
            if self.validation is not None:
                name = main if reported else f"{main}_{model.norm_statistics}"
                validation = self._score(model, self.validation).counts
                columns[f"{name}_validation"] = micro(metrics[0], validation, total)
            # The global model's training loss, or the personal models' if there is no global model.
            if reported and (kind == "gm" or "train_loss" not in columns):
                columns["train_loss"] = mean_loss(self._score(model, train).counts, total)
        columns |= self._densities()
        names, table = list(columns), torch.stack([column.double() for column in columns.values()], -1)
        return [dict(zip(names, row, strict=True)) for row in table.reshape(-1, len(names)).tolist()]

    def score_test_rows(self, state: State) -> dict[str, Scored]:
        """The test rows of every client under each kind of model of a state, as the history reports it."""
        return {
            model.kind: self._score(model, self.test)
            for model in self._models(state)
            if model.norm_statistics == self._reported
        }

    def losses(self, rows: Rows) -> dict[str, Tensor]:
        """The cross-entropy of each row, (*lead, rows), under each kind of model of the history."""
        found = {}
        for model in self._models():
            if model.norm_statistics == self._reported:
                task = replace(self.task, statistics=model.statistics)
                scores = self.simulator.algorithm.predict(model.parameters, task, rows.inputs)
                found[model.kind] = cross_entropy_of_rows(scores, rows.labels)
        return found

    @property
    def task(self) -> Task:
        """The tasks of the clients on whose rows models are evaluated."""
        return self.pooled.task if self.pooled else self.simulator.task

    @property
    def seats(self) -> Seats:
        """The seats of these clients."""
        return self.pooled.seats if self.pooled else self.simulator.seats

    @property
    def _total(self) -> Total:
        runs = self.simulator.runs
        return over_clients(runs, len(self.task.lead) - runs)

    @property
    def _reported(self) -> str:
        return self.options.norm_statistics

    def _models(self, state: State | None = None) -> Iterator[EvaluatedModel]:
        """Every kind of model of a state, with each kind of statistics it is evaluated with.

        Args:
            state: None for the simulator's own.
        """
        simulator, state = self.simulator, state or self.simulator.state
        algorithm, own = simulator.algorithm, state.statistics.expand(*self.task.lead, -1)
        both = ("averaged", "local") if self.task.network.s else (self._reported,)

        def shared(kind: str, model: Tensor, mean: Tensor) -> Iterator[EvaluatedModel]:
            for which in both:
                yield EvaluatedModel(kind, which, model, mean if which == "averaged" else own)

        lent = replace(self.task, statistics=own)
        personal = algorithm.personalize(simulator.received(state), state.personal, lent, Clock(state.round))
        if personal is not None:
            yield EvaluatedModel("pm", self._reported, personal, own)
        if state.edges is not None:
            model = algorithm.edge_model(state.edges.state)
            if model is not None:
                yield from shared("em", self._of_edge(model), self._of_edge(state.edges.statistics))
        model = algorithm.global_model(state.served.state)
        if model is not None:
            yield from shared("gm", self._of_cloud(model), self._of_cloud(state.served.statistics))

    def _of_cloud(self, model: Tensor) -> Tensor:
        """The model of each client's run, (*lead, d) of (runs?, d)."""
        return spread_over(model, self.task.lead, self.simulator.runs)

    def _of_edge(self, model: Tensor) -> Tensor:
        """The model of each client's edge, (*lead, d) of (..., edges, d)."""
        return model.unsqueeze(-2).expand(*self.task.lead, model.shape[-1])

    def _score(self, model: EvaluatedModel, rows: Rows) -> Scored:
        """Each client's counts on these rows, and the predictions."""
        task, parameters = replace(self.task, statistics=model.statistics), model.parameters
        if self.simulator.algorithm.predicts_from_features:
            return self._score_by_size(parameters, task, rows)
        parts = [
            self._score_rows(parameters, task, rows, first, min(self.rows_at_once, rows.width - first))
            for first in range(0, rows.width, self.rows_at_once)
        ]
        counts = reduce(add, (part.counts for part in parts))
        return Scored(counts, torch.cat([part.predicted for part in parts], -1))

    def _score_by_size(self, parameters: Any, task: Task, rows: Rows) -> Scored:
        """`_score` for a method without a head (pFedGP): clients of nearly equal size are computed together.

        To such a method a padded row costs as much as a real one. It would also repeat work for every part of
        a client's rows, so it gets all of them at once.
        """
        axis, sizes = len(task.lead), rows.sizes.flatten().tolist()
        predicted = torch.zeros_like(rows.labels).flatten(0, axis - 1)
        counts: Counts | None = None
        for magnitude in sorted({size.bit_length() for size in sizes if size}):
            who = [seat for seat, size in enumerate(sizes) if size.bit_length() == magnitude]
            where = torch.tensor(who, device=rows.labels.device)

            def some(tensor: Tensor, where: Tensor = where) -> Tensor:
                return tensor.expand(*task.lead, *tensor.shape[axis:]).flatten(0, axis - 1)[where]

            def placed(tensor: Tensor, where: Tensor = where) -> Tensor:
                return tensor.new_zeros(len(sizes), *tensor.shape[1:]).index_copy(0, where, tensor)

            width = max(sizes[seat] for seat in who)
            part = self._score_rows(
                tree_map(some, parameters),
                task.map(some),
                Rows(*(some(each) for each in rows)),
                0,
                width,
            )
            predicted[where, :width] = part.predicted
            here = part.counts.map(placed)
            counts = here if counts is None else add(counts, here)
        assert counts is not None, "some client has rows"
        counts = counts.map(lambda each: each.view(*task.lead, *each.shape[1:]))
        return Scored(counts, predicted.view_as(rows.labels))

    def _score_rows(self, parameters: Any, task: Task, rows: Rows, first: int, width: int) -> Scored:
        """The same for `width` rows of every client, from the row numbered `first`."""
        axis = len(task.lead)
        inputs, labels = (part.narrow(axis, first, width) for part in (rows.inputs, rows.labels))
        real = torch.arange(first, first + width, device=labels.device) < rows.sizes.unsqueeze(-1)
        scores = self.simulator.algorithm.predict(parameters, task, inputs)
        return self.counting.count(scores, labels, real)

    def _densities(self) -> dict[str, Tensor]:
        """The share of weights that are not near zero: the mean over all models of a kind.

        Seats without a client, and edges without any client, do not count.
        """
        state, algorithm = self.simulator.state, self.simulator.algorithm
        seated, total = self.task.sizes > 0, over_clients(self.simulator.runs)
        models: list[tuple[str, Tensor | None, Tensor | None]]
        models = [("global", algorithm.global_model(state.served.state), None)]
        if state.edges is not None:
            models.append(("edge", algorithm.edge_model(state.edges.state), seated.any(-1)))
        if isinstance(state.personal, Tensor | Factored):
            models.append(("client", dense(state.personal), seated))
        found = {}
        for name, model, there in models:
            if model is not None:
                share = density(model, self.density_threshold).double()
                if there is not None:
                    share = total(torch.where(there, share, 0.0)) / total(there.double())
                found[f"density_{name}"] = share
        return found

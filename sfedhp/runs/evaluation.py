"""Scores every kind of model of a simulation on the clients' own rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from sfedhp.config import EvaluationOptions
from sfedhp.core.factored import Factored, dense
from sfedhp.core.trees import tree_map
from sfedhp.core.types import Clock
from sfedhp.core.vectors import density
from sfedhp.engine.seats import Seats
from sfedhp.engine.simulator import Simulator, spread_over
from sfedhp.engine.state import State
from sfedhp.nn.task import Task
from sfedhp.runs.build import Rows
from sfedhp.runs.metrics import Counts, accuracy, client_metrics, mean_loss, over_clients


class EvaluatedModel(NamedTuple):
    """A kind of model with the running statistics it is evaluated with, for every client."""

    kind: str  # of `KINDS`
    norm_statistics: str  # "averaged" or "local"
    parameters: Any  # what the method predicts with
    statistics: Tensor  # (*lead, s)


class Scored(NamedTuple):
    """What a kind of model does with the rows of every client."""

    counts: Counts
    predicted: Tensor  # (*lead, rows): the class of each row; without meaning where a row only pads


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
    rows_at_once: int = 512  # of each client
    pooled: Clients | None = None  # the clients whose rows were pooled; None: they are the simulator's

    def measure(self) -> list[dict[str, float]]:
        """The metrics of each run of the stack, as columns of its history."""
        columns: dict[str, Tensor] = {}
        total = over_clients(self.simulator.runs)
        train = Rows(self.task.inputs, self.task.labels, self.task.sizes)
        for model in self._models():
            kind, reported = model.kind, model.norm_statistics == self._reported
            test = self._score(model, self.test).counts
            if self.task.network.s and kind != "pm":
                columns[f"{kind}_{model.norm_statistics}"] = accuracy(test, total)
            if reported:
                columns[kind] = accuracy(test, total)
                columns |= client_metrics(kind, test, total)
                columns[f"{kind}_loss"] = mean_loss(test, total)
            if self.validation is not None:
                name = kind if reported else f"{kind}_{model.norm_statistics}"
                columns[f"{name}_validation"] = accuracy(self._score(model, self.validation).counts, total)
            # The global model's training loss, or the personal models' where there is no global one.
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

    @property
    def task(self) -> Task:
        """The tasks of the clients on whose rows models are evaluated."""
        return self.pooled.task if self.pooled else self.simulator.task

    @property
    def seats(self) -> Seats:
        """The seats of these clients."""
        return self.pooled.seats if self.pooled else self.simulator.seats

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
        """What each client counts on these rows, and the predictions."""
        task, parameters = replace(self.task, statistics=model.statistics), model.parameters
        if self.simulator.algorithm.predicts_from_features:
            return self._score_by_size(parameters, task, rows)
        correct = torch.zeros(task.lead, dtype=torch.float64, device=rows.labels.device)
        loss, predicted = torch.zeros_like(correct), [rows.labels[..., :0]]
        for first in range(0, rows.labels.shape[-1], self.rows_at_once):
            width = min(self.rows_at_once, rows.labels.shape[-1] - first)
            part = self._score_rows(parameters, task, rows, first, width)
            correct, loss = correct + part.counts.correct, loss + part.counts.loss
            predicted.append(part.predicted)
        return Scored(Counts(correct, loss, rows.sizes.double()), torch.cat(predicted, -1))

    def _score_by_size(self, parameters: Any, task: Task, rows: Rows) -> Scored:
        """The same for a method without a head (pFedGP): clients of nearly equal size are computed together.

        To such a method a padded row costs as much as a real one. It would also repeat work for every part of
        a client's rows, so it gets all of them at once.
        """
        axis, counts = len(task.lead), rows.sizes.flatten().tolist()
        correct = torch.zeros(len(counts), dtype=torch.float64, device=rows.labels.device)
        loss, predicted = torch.zeros_like(correct), torch.zeros_like(rows.labels).flatten(0, axis - 1)
        for magnitude in sorted({count.bit_length() for count in counts if count}):
            who = [seat for seat, count in enumerate(counts) if count.bit_length() == magnitude]
            where = torch.tensor(who, device=rows.labels.device)

            def some(tensor: Tensor, where: Tensor = where) -> Tensor:
                return tensor.expand(*task.lead, *tensor.shape[axis:]).flatten(0, axis - 1)[where]

            width = max(counts[seat] for seat in who)
            part = self._score_rows(
                tree_map(some, parameters),
                task.map(some),
                Rows(*(some(each) for each in rows)),
                0,
                width,
            )
            correct[where], loss[where] = part.counts.correct, part.counts.loss
            predicted[where, :width] = part.predicted
        total = Counts(correct.view(task.lead), loss.view(task.lead), rows.sizes.double())
        return Scored(total, predicted.view_as(rows.labels))

    def _score_rows(self, parameters: Any, task: Task, rows: Rows, first: int, width: int) -> Scored:
        """The same for `width` rows of every client, from the row numbered `first`."""
        labels = rows.labels.narrow(-1, first, width)
        real = torch.arange(first, first + width, device=labels.device) < rows.sizes.unsqueeze(-1)
        inputs = rows.inputs.narrow(len(task.lead), first, width)
        scores = self.simulator.algorithm.predict(parameters, task, inputs)
        each = -log_softmax(scores, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        predicted = scores.argmax(-1)
        correct = ((predicted == labels) & real).sum(-1)
        loss = torch.where(real, each, 0.0).sum(-1)
        return Scored(Counts(correct.double(), loss.double(), real.sum(-1)), predicted)

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

"""How good the models are: PM, EM and GM on every client's own rows, in percent."""

from __future__ import annotations

import math
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
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.task import Task

KINDS = ("pm", "em", "gm")  # personalized, edge and global model


class Rows(NamedTuple):
    """Rows of every client that models are scored on, stacked like the clients' training data."""

    inputs: Tensor  # (*lead, rows, *shape)
    labels: Tensor  # (*lead, rows)
    sizes: Tensor  # (*lead)


class Score(NamedTuple):
    """How a stack of models did: sums for each client."""

    correct: Tensor  # (*lead)
    loss: Tensor  # (*lead), summed over rows
    rows: Tensor  # (*lead)


@dataclass(frozen=True)
class Evaluator:
    """Scores a simulator's models after a round."""

    simulator: Simulator
    test: Rows
    validation: Rows | None
    options: EvaluationOptions
    density_threshold: float
    rows_at_once: int = 512  # of each client

    def measure(self) -> list[dict[str, float]]:
        """One row of figures for each run of the stack."""
        columns: dict[str, Tensor] = {}
        train = Rows(self._task.inputs, self._task.labels, self._task.sizes)
        for kind, wears, parameters, statistics in self._models():
            task = replace(self._task, statistics=statistics)
            columns |= self._figures(kind, wears, self._score(parameters, task, self.test))
            if self.validation is not None:
                judged = kind if wears == self._reported else f"{kind}_{wears}"
                columns[f"{judged}_validation"] = self._micro(self._score(parameters, task, self.validation))
            if wears != self._reported:
                continue
            # The global model's training loss, or the personal models' where there is no global one.
            if kind == "gm" or "train_loss" not in columns:
                score = self._score(parameters, task, train)
                columns["train_loss"] = self._sum(score.loss) / self._sum(score.rows)
        columns |= self._densities()
        names, table = list(columns), torch.stack([column.double() for column in columns.values()], -1)
        return [dict(zip(names, row, strict=True)) for row in table.reshape(-1, len(names)).tolist()]

    @property
    def _task(self) -> Task:
        return self.simulator.task

    @property
    def _reported(self) -> str:
        return self.options.norm_statistics

    def _models(self) -> Iterator[tuple[str, str, Any, Tensor]]:
        """Every kind of model the method has, for each client: kind, what it wears, weights, statistics."""
        simulator, state = self.simulator, self.simulator.state
        algorithm, own = simulator.algorithm, self.simulator.state.statistics
        both = ("averaged", "local") if self._task.network.s else (self._reported,)
        lent = replace(self._task, statistics=own)
        personal = algorithm.personalize(simulator.received(), state.personal, lent, Clock(state.round))
        if personal is not None:
            yield "pm", self._reported, personal, own
        if state.edges is not None:
            model = algorithm.edge_model(state.edges.state)
            if model is not None:
                for wears in both:
                    mean = self._under(state.edges.statistics)
                    yield "em", wears, self._under(model), mean if wears == "averaged" else own
        model = algorithm.global_model(state.served.state)
        if model is not None:
            for wears in both:
                mean = simulator.everyone(state.served.statistics)
                yield "gm", wears, simulator.everyone(model), mean if wears == "averaged" else own

    def _under(self, model: Tensor) -> Tensor:
        """An edge's model to each of its clients."""
        return model.unsqueeze(-2).expand(*self._task.lead, model.shape[-1])

    def _score(self, parameters: Any, task: Task, rows: Rows) -> Score:
        if self.simulator.algorithm.features:
            return self._score_alike(parameters, task, rows)
        correct = torch.zeros(task.lead, dtype=torch.float64, device=rows.labels.device)
        loss = torch.zeros_like(correct)
        for first in range(0, rows.labels.shape[-1], self.rows_at_once):
            width = min(self.rows_at_once, rows.labels.shape[-1] - first)
            part = self._score_rows(parameters, task, rows, first, width)
            correct, loss = correct + part.correct, loss + part.loss
        return Score(correct, loss, rows.sizes.double())

    def _score_alike(self, parameters: Any, task: Task, rows: Rows) -> Score:
        """Clients with nearly equally many rows go together: without a head (pFedGP) every row is dear.

        All rows of a client at once, because such a method would repeat work for every piece of them.
        """
        axis, counts = len(task.lead), rows.sizes.flatten().tolist()
        correct = torch.zeros(len(counts), dtype=torch.float64, device=rows.labels.device)
        loss = torch.zeros_like(correct)
        for magnitude in sorted({count.bit_length() for count in counts if count}):
            who = [seat for seat, count in enumerate(counts) if count.bit_length() == magnitude]
            where = torch.tensor(who, device=rows.labels.device)

            def some(tensor: Tensor, where: Tensor = where) -> Tensor:
                return tensor.expand(*task.lead, *tensor.shape[axis:]).flatten(0, axis - 1)[where]

            part = self._score_rows(
                tree_map(some, parameters),
                task.map(some),
                Rows(*(some(each) for each in rows)),
                0,
                max(counts[seat] for seat in who),
            )
            correct[where], loss[where] = part.correct, part.loss
        return Score(correct.view(task.lead), loss.view(task.lead), rows.sizes.double())

    def _score_rows(self, parameters: Any, task: Task, rows: Rows, first: int, width: int) -> Score:
        """So many rows of every client, beginning with the one numbered `first`."""
        labels = rows.labels.narrow(-1, first, width)
        real = torch.arange(first, first + width, device=labels.device) < rows.sizes.unsqueeze(-1)
        inputs = rows.inputs.narrow(len(task.lead), first, width)
        scores = self.simulator.algorithm.predict(parameters, task, inputs)
        each = -log_softmax(scores, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        correct = ((scores.argmax(-1) == labels) & real).sum(-1)
        return Score(correct.double(), torch.where(real, each, 0.0).sum(-1).double(), real.sum(-1))

    def _figures(self, kind: str, wears: str, score: Score) -> dict[str, Tensor]:
        micro = self._micro(score)
        figures = {f"{kind}_{wears}": micro} if self._task.network.s and kind != "pm" else {}
        if wears != self._reported:
            return figures
        seated = score.rows > 0
        each = 100 * score.correct / score.rows.clamp_min(1)
        count = self._sum(seated.double())
        macro = self._sum(each * seated) / count
        runs = self.simulator.runs
        spread = (self._sum(torch.where(seated, each - _wide(macro, each), 0.0) ** 2) / count).sqrt()
        ranked = torch.where(seated, each, torch.inf).flatten(runs).sort(-1).values
        tenth = math.ceil(0.1 * int(count.reshape(-1)[0]))
        return {
            **figures,
            kind: micro,
            f"{kind}_macro": macro,
            f"{kind}_spread": spread,
            f"{kind}_worst": ranked[..., :tenth].mean(-1),
            f"{kind}_loss": self._sum(score.loss) / self._sum(score.rows),
        }

    def _densities(self) -> dict[str, Tensor]:
        """The share of weights that are not near zero, by kind of model; the mean over those of a kind.

        Seats without a client, and edges of such seats alone, do not count.
        """
        state, algorithm = self.simulator.state, self.simulator.algorithm
        seated = self._task.sizes > 0
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
                    share = self._sum(torch.where(there, share, 0.0)) / self._sum(there.double())
                found[f"density_{name}"] = share
        return found

    def _micro(self, score: Score) -> Tensor:
        return 100 * self._sum(score.correct) / self._sum(score.rows).clamp_min(1)

    def _sum(self, each: Tensor) -> Tensor:
        return each.flatten(self.simulator.runs).sum(-1)


def _wide(run: Tensor, each: Tensor) -> Tensor:
    return run.reshape(*run.shape, *(1,) * (each.ndim - run.ndim))

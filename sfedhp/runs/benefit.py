"""Does federating help? Compares the models of a comparison with training alone and with pooled rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sfedhp.core.formats import listed
from sfedhp.nn.problems import CLASSIFICATION, KINDS, Metric
from sfedhp.runs.hints import rises
from sfedhp.runs.provenance import METHOD
from sfedhp.runs.recorded import RecordedRun
from sfedhp.runs.scores import Scores

ALONE, POOLED = "local", "pooled"  # the methods to compare with
_MODELS: Final = {"pm": "personal models", "em": "edge models", "gm": "global model"}
_EQUAL: Final = 0.05  # points, or % of an error; less is not a difference in a table


class Figures(NamedTuple):
    """How a kind of model of one method compares; None if there is nothing to compare with.

    A gain is in points of a percentage, or in % of an error, and positive where the model is better.
    """

    over_alone: float | None  # gain over training alone, on all test rows
    over_pooled: float | None  # gain over the model of pooled rows
    worse_than_alone: int | None  # clients whose own model, trained alone, is better on their test rows
    clients: int | None  # of those compared
    still_rising: float | None  # gain of the last third of the evaluations


@dataclass(frozen=True)
class Benefit:
    """The runs of a comparison, one of each method, with training alone among them."""

    runs: Mapping[str, RecordedRun]  # by method; those that finished

    @property
    def metric(self) -> Metric:
        """The main metric of the runs: all are of one problem."""
        return next(iter(self.runs.values())).problem.main if self.runs else CLASSIFICATION.main

    @property
    def alone(self) -> float | None:
        """The accuracy, or main metric, of models trained alone, over all test rows."""
        return self._value(ALONE, "pm")

    @property
    def pooled(self) -> float | None:
        """The accuracy of the model of pooled rows."""
        return self._value(POOLED, "gm")

    def alone_by_client(self) -> dict[int, float]:
        """The accuracy of each client's model trained alone."""
        return _by_client(self._scores(ALONE), "pm")

    def figures(self, method: str, kind: str) -> Figures | None:
        """How a kind of model of a method compares; None if the method has none."""
        value, run = self._value(method, kind), self.runs.get(method)
        if value is None or run is None:
            return None
        alone, own = self.alone_by_client(), _by_client(run.scores, kind)
        both = [client for client in own if client in alone]
        return Figures(
            None if self.alone is None else self.metric.gain(self.alone, value),
            None if self.pooled is None else self.metric.gain(self.pooled, value),
            sum(self.metric.better(alone[client], own[client]) for client in both) if both else None,
            len(both) or None,
            rises(run.history).get(kind),
        )

    def as_dict(self, method: str) -> dict[str, Any]:
        """The figures of a method as JSON can hold them."""
        found = {kind: self.figures(method, kind) for kind in KINDS}
        run, rising = self.runs.get(method), [each for each in found.values() if each and each.still_rising]
        return {
            "alone": self.alone,
            "pooled": self.pooled,
            **{kind: None if each is None else each._asdict() for kind, each in found.items()},
            "more_rounds": run.rounds_done if run and rising else None,
        }

    def sentences(self) -> list[str]:
        """Sentences on what each tier's best model gains, and a conclusion; none without training alone."""
        if self.alone is None:
            return []
        clauses, rising = [], []
        for kind in KINDS:
            if (method := self.best(kind)) is not None:
                clauses.append(self._clause(method, kind))
                if rises(self.runs[method].history).get(kind):
                    rising.append(kind.upper())
        if not clauses:
            return []
        bound = ""
        if self.pooled is not None:
            bound = f", one model of all rows in one place {self._text(self.pooled)}"
        rounds = self.runs[ALONE].rounds_done
        more = ""
        if rising:
            verb = "were" if len(rising) > 1 else "was"
            still = f"{listed(rising)} {verb} still {self.metric.improving}"
            more = f"; {still} at the end: try {rounds} more rounds"
        name = "" if self.metric.name == "accuracy" else f"{self.metric.title} "
        sentence = f"Training alone has {name}{self._text(self.alone)}{bound}: {'; '.join(clauses)}{more}."
        return [sentence, *self._conclusion()]

    def best(self, kind: str) -> str | None:
        """The federated method whose models of this kind are best at the end, on validation rows if any."""
        values: dict[str, tuple[float, float]] = {}
        for method, run in self.runs.items():
            value = self._value(method, kind)
            if value is not None and method not in (ALONE, POOLED):
                column, sign = self.metric.column(kind), 1 if self.metric.higher_is_better else -1
                evaluated = [row for row in run.history if row.get(column) is not None]
                validated = evaluated[-1].get(f"{column}_validation") or 0.0
                values[method] = (sign * validated, sign * value)
        return max(values, key=lambda method: values[method], default=None)

    def _clause(self, method: str, kind: str) -> str:
        """One kind of model of one method against both bounds."""
        found, value = self.figures(method, kind), self._value(method, kind)
        assert found is not None
        assert found.over_alone is not None
        gaps = [self._gap(found.over_alone, "training alone")]
        if found.over_pooled is not None:
            gaps.append(self._gap(found.over_pooled, "pooled rows"))
        worse = ""
        if found.worse_than_alone is not None and kind == "pm":
            worse = f", and worse than alone for {found.worse_than_alone} of {found.clients} clients"
        verb = "is" if kind == "gm" else "are"
        return f"the best {_MODELS[kind]} ({method}, {self._text(value)}) {verb} {listed(gaps)}{worse}"

    def _conclusion(self) -> list[str]:
        """The conclusion if training alone has better models for a client's own rows."""
        values = [self._value(method, kind) for kind in KINDS if (method := self.best(kind)) is not None]
        alone = self.alone or 0.0
        if any(value is not None and self.metric.gain(alone, value) >= _EQUAL for value in values):
            return []
        kinds = [kind for kind in ("em", "gm") if self.best(kind) is not None]
        if not kinds:
            return ["For the rows that each client holds, training alone is enough."]
        shared, verb = [_MODELS[kind] for kind in kinds], "is" if kinds == ["gm"] else "are"
        held, classes = _labels(self._scores(ALONE))
        others = "rows unlike its own"
        if held < classes:
            others = f"rows with labels that it does not hold (a client holds {held:.3g} of {classes})"
        return [
            f"For the rows that each client holds, training alone is enough here; the {listed(shared)} "
            f"{verb} for what a client alone cannot do: {others}, and clients that join later."
        ]

    def _value(self, method: str, kind: str) -> float | None:
        """The main metric of a method's models of this kind after the last round."""
        if method not in self.runs:
            return None
        value: float | None = self.runs[method].summary.get(f"{self.metric.column(kind)}_last")
        return value

    def _gap(self, gain: float, what: str) -> str:
        """A difference in words: how much better or worse a value is than another."""
        if abs(gain) < _EQUAL:
            return f"as good as {what}"
        if self.metric.percent:
            return f"{abs(gain):.1f} points {'above' if gain > 0 else 'below'} {what}"
        return f"{abs(gain):.1f} % {'better' if gain > 0 else 'worse'} than {what}"

    def _text(self, value: float | None) -> str:
        if value is None or not self.metric.percent:
            return self.metric.text(value)
        return f"{value:.1f} %"

    def _scores(self, method: str) -> Scores | None:
        return self.runs[method].scores if method in self.runs else None


def benefit_of(runs: Sequence[RecordedRun]) -> Benefit:
    """The benefit that the runs of a comparison show; runs that are not finished do not count.

    A method that ran several times, as in a sweep, does not count either.
    """
    methods = [run.config[METHOD] for run in runs]
    return Benefit(
        {
            method: run
            for method, run in zip(methods, runs, strict=True)
            if run.finished and methods.count(method) == 1
        }
    )


def _by_client(scores: Scores | None, kind: str) -> dict[int, float]:
    if scores is None:
        return {}
    return {row["client"]: row[kind] for row in scores.clients if row[kind] is not None}


def _labels(scores: Scores | None) -> tuple[float, int]:
    """How many labels a client holds, in the mean, and how many there are."""
    clients = [len(row["labels"].split()) for row in scores.clients] if scores is not None else []
    return (sum(clients) / len(clients), len(scores.classes)) if scores is not None and clients else (0, 0)

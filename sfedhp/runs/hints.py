"""Hints on results: signs that something is wrong, or that more rounds would help.

The rules are in docs/concepts.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from sfedhp.core.formats import listed
from sfedhp.nn.problems import KINDS, METRICS, Metric, main_metric
from sfedhp.runs.record_file import Row
from sfedhp.runs.scores import Matrix, Scores

_RISE: Final = 1.0  # points of a percentage, or percent of an error
_FALL: Final = 2.0  # likewise
_FALLEN: Final = 0.9  # of the first training loss: below, a model learns
_ADVICE: Final = "check the scale of the inputs (data.scale) and the rates (`sfedhp check`)"


class SeenClasses(NamedTuple):
    """The classes that occur in test rows, and those that a kind of model predicts for them."""

    held: AbstractSet[int]
    predicted: AbstractSet[int]

    @classmethod
    def of(cls, confusion: Matrix) -> SeenClasses:
        """The classes seen in a confusion matrix."""
        columns = enumerate(zip(*confusion, strict=True))
        held = {label for label, row in enumerate(confusion) if any(row)}
        return cls(held, {label for label, column in columns if any(column)})

    def __or__(self, other: SeenClasses) -> SeenClasses:
        return SeenClasses(self.held | other.held, self.predicted | other.predicted)


_NO_CLASSES: Final = SeenClasses(frozenset(), frozenset())


def hints(rows: Sequence[Row], scores: Scores | None, *, finished: bool) -> list[str]:
    """The hints on a run that did not diverge, one sentence each.

    Args:
        rows: its history.
        scores: of its last state, where they are known.
        finished: whether all rounds are done; while some are left, accuracy may well be rising.
    """
    classes, names = {}, []
    if scores is not None:
        classes = {kind: SeenClasses.of(matrix) for kind, matrix in scores.confusion.items()}
        names = [row["name"] for row in scores.classes if "name" in row]
    return hints_of_classes(rows, classes, names, finished=finished)


def hints_of_classes(
    rows: Sequence[Row], classes: Mapping[str, SeenClasses], names: Sequence[str] = (), *, finished: bool
) -> list[str]:
    """The hints that need only the classes that each kind of model predicts."""
    found = [one_class(classes, names), never_moved(rows, classes)]
    useless = worse_than_mean(rows)
    found.append(useless)
    if finished:
        found += [was_better(rows)] if useless else [still_rising(rows), was_better(rows)]
    return [sentence for sentence in found if sentence is not None]


def one_class(classes: Mapping[str, SeenClasses], names: Sequence[str] = ()) -> str | None:
    """A hint if a kind of model predicts the same class for every test row, although they have several.

    Args:
        classes: by kind of model.
        names: of the classes, where they have some.
    """
    named = []
    for kind in KINDS:
        held, predicted = classes.get(kind, _NO_CLASSES)
        if len(predicted) == 1 and len(held) > 1:
            (label,) = predicted
            named.append(f"{kind.upper()} (class {names[label] if names else label})")
    return f"All predictions of {listed(named)} are one class: {_ADVICE}." if named else None


def never_moved(rows: Sequence[Row], classes: Mapping[str, SeenClasses] | None = None) -> str | None:
    """A hint if a kind of model has the same main metric in all evaluations, of which there are at least two.

    A percentage of 100 or an error of 0 cannot improve, so they give no hint. Nor does a model that predicts
    several classes where the training loss has fallen by a tenth: it learns, and its test rows are too few to
    show it.

    Args:
        rows: of the history.
        classes: by kind of model, where they are known.
    """
    metric = main_metric_of(rows)
    losses = [row["train_loss"] for row in rows if row.get("train_loss") is not None]
    fallen = bool(losses) and losses[-1] < _FALLEN * losses[0]
    learning = {kind for kind, seen in (classes or {}).items() if fallen and len(seen.predicted) > 1}
    best, unit = (100, " %") if metric.percent else (0, "")
    named = [
        f"{kind.upper()} ({metric.text(values[0])}{unit})"
        for kind, values in _figures(rows, metric)
        if kind not in learning and len(values) > 1 and values[0] != best and set(values) == {values[0]}
    ]
    if not named:
        return None
    whose = "its" if len(named) == 1 else "their"
    return f"The {metric.title} of {listed(named)} never moved from {whose} first evaluation: {_ADVICE}."


def worse_than_mean(rows: Sequence[Row]) -> str | None:
    """A hint if no model predicts numbers better than the mean of all does, which has R² = 0."""
    metric = METRICS["r2"]
    last = {kind: values[-1] for kind, values in _figures(rows, metric) if values}
    if not last or max(last.values()) > 0:
        return None
    named = listed([f"{kind.upper()} {metric.title} {metric.text(value)}" for kind, value in last.items()])
    return f"The models are no better than predicting the mean ({named}): {_ADVICE}."


def still_rising(rows: Sequence[Row]) -> str | None:
    """A hint if the main metric of a kind of model was still improving at the end; see `rises`."""
    metric = main_metric_of(rows)
    unit = "points" if metric.percent else "%"
    named = [f"{kind.upper()} by {rise:.1f} {unit}" for kind, rise in rises(rows).items()]
    if not named:
        return None
    moved = f"{metric.title[0].upper()}{metric.title[1:]} was still {metric.improving}"
    return (
        f"{moved} at the end ({listed(named)} in the last third): use more rounds, for "
        f"example rounds={2 * rows[-1]['round']}."
    )


def was_better(rows: Sequence[Row]) -> str | None:
    """A hint if a kind of model was clearly better earlier: its best value of the last third is more than two
    points of a percentage, or two percent of an error, worse than the best before."""
    metric, named = main_metric_of(rows), []
    best, unit = max if metric.higher_is_better else min, " %" if metric.percent else ""
    for kind, values in _figures(rows, metric):
        third = len(values) // 3
        if third and _gain(metric, values[:-third], values[-third:]) < -_FALL:
            first, last = (metric.text(best(part)) for part in (values[:-third], values[-third:]))
            named.append(f"{kind.upper()} {first}{unit} before and {last}{unit} in the last third")
    if not named:
        return None
    return (
        f"The best {metric.title} was earlier ({listed(named)}), perhaps because the models overfit: use "
        f"fewer rounds, and data.validation_per_label=1 to see after how many on rows that are not for "
        f"testing."
    )


def rises(rows: Sequence[Row]) -> dict[str, float]:
    """By how much each kind of model was still improving at the end: points of a percentage, % of an error.

    Only those above one are named. The best value of the last third of the evaluations counts, against the
    best of all before. A third of n evaluations is n // 3 of them, so that there are at least three.
    """
    metric, found = main_metric_of(rows), {}
    for kind, values in _figures(rows, metric):
        third = len(values) // 3
        rise = _gain(metric, values[:-third], values[-third:]) if third else 0.0
        if rise > _RISE:
            found[kind] = rise
    return found


def _gain(metric: Metric, before: Sequence[float], after: Sequence[float]) -> float:
    """How much better the best value after is than the best before: points of a percentage, % of an error."""
    best = max if metric.higher_is_better else min
    return metric.gain(best(before), best(after))


def main_metric_of(rows: Sequence[Row]) -> Metric:
    """The main metric of a history: a percentage that rises, or an error that falls."""
    return main_metric(next((row for row in reversed(rows) if "train_loss" in row), {}))


def _figures(rows: Sequence[Row], metric: Metric) -> Iterator[tuple[str, list[float]]]:
    """The metric of each kind of model, evaluation by evaluation."""
    for kind in KINDS:
        column = metric.column(kind)
        yield kind, [row[column] for row in rows if row.get(column) is not None]

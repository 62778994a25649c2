"""Sentences on results that usually mean that something is wrong, or that more rounds would help.

The rules are in docs/concepts.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from sfedhp.core.formats import listed
from sfedhp.nn.problems import Metric, main_metric
from sfedhp.runs.metrics import KINDS
from sfedhp.runs.record_file import Row
from sfedhp.runs.scores import Matrix, Scores

_RISE: Final = 1.0  # points of a percentage, or percent of an error
_ADVICE: Final = "check the scale of the inputs (data.scale) and the rates (`sfedhp check`)"


class SeenClasses(NamedTuple):
    """The classes that occur in test rows, and those that a kind of model predicts for them."""

    held: AbstractSet[int]
    predicted: AbstractSet[int]

    @classmethod
    def of(cls, confusion: Matrix) -> SeenClasses:
        """Those of a confusion matrix."""
        columns = enumerate(zip(*confusion, strict=True))
        held = {label for label, row in enumerate(confusion) if any(row)}
        return cls(held, {label for label, column in columns if any(column)})

    def __or__(self, other: SeenClasses) -> SeenClasses:
        return SeenClasses(self.held | other.held, self.predicted | other.predicted)


_NO_CLASSES: Final = SeenClasses(frozenset(), frozenset())


def hints(rows: Sequence[Row], scores: Scores | None, *, finished: bool) -> list[str]:
    """What to tell the user about a run that did not diverge, one sentence each.

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
    """The same where the classes that each kind of model predicts are known, and no other scores."""
    found = [one_class(classes, names), never_moved(rows)]
    if finished:
        found.append(still_rising(rows))
    return [sentence for sentence in found if sentence is not None]


def one_class(classes: Mapping[str, SeenClasses], names: Sequence[str] = ()) -> str | None:
    """A kind of model predicts the same class for every test row, although these have several classes.

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


def never_moved(rows: Sequence[Row]) -> str | None:
    """The main metric of a kind of model is the same in all evaluations, of which there are at least two.

    A percentage of 100 cannot rise, and an error of 0 cannot fall: they are not meant.
    """
    metric = main_metric_of(rows)
    best, unit = (100, " %") if metric.percent else (0, "")
    named = [
        f"{kind.upper()} ({metric.text(values[0])}{unit})"
        for kind, values in _figures(rows, metric)
        if len(values) > 1 and values[0] != best and set(values) == {values[0]}
    ]
    if not named:
        return None
    return f"The {metric.title} of {listed(named)} never moved from its first evaluation: {_ADVICE}."


def still_rising(rows: Sequence[Row]) -> str | None:
    """The main metric of a kind of model was still improving at the end; see `rises`."""
    metric = main_metric_of(rows)
    unit = "points" if metric.percent else "%"
    named = [f"{kind.upper()} by {rise:.1f} {unit}" for kind, rise in rises(rows).items()]
    if not named:
        return None
    moved = (
        f"{metric.title[0].upper()}{metric.title[1:]} was still {'rising' if metric.percent else 'falling'}"
    )
    return (
        f"{moved} at the end ({listed(named)} in the last third): use more rounds, for "
        f"example rounds={2 * rows[-1]['round']}."
    )


def rises(rows: Sequence[Row]) -> dict[str, float]:
    """By how much each kind of model was still improving at the end: points of a percentage, % of an error.

    Only those above one are named. The best value of the last third of the evaluations counts, against that
    of the third before. A third of n evaluations is n // 3 of them, so that there are at least three.
    """
    metric, found = main_metric_of(rows), {}
    best = max if metric.higher_is_better else min
    for kind, values in _figures(rows, metric):
        third = len(values) // 3
        if not third:
            continue
        before, after = best(values[-2 * third : -third]), best(values[-third:])
        rise = after - before if metric.percent else 100 * (before - after) / before if before else 0.0
        if rise > _RISE:
            found[kind] = rise
    return found


def main_metric_of(rows: Sequence[Row]) -> Metric:
    """The main metric of a history: a percentage that rises, or an error that falls."""
    return main_metric(next((row for row in reversed(rows) if "train_loss" in row), {}))


def _figures(rows: Sequence[Row], metric: Metric) -> Iterator[tuple[str, list[float]]]:
    """The metric of each kind of model, evaluation by evaluation."""
    for kind in KINDS:
        column = metric.column(kind)
        yield kind, [row[column] for row in rows if row.get(column) is not None]

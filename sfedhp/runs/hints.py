"""Sentences on results that usually mean that something is wrong, or that more rounds would help.

The rules are in docs/concepts.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sfedhp.core.formats import listed
from sfedhp.runs.metrics import KINDS
from sfedhp.runs.record_file import Row
from sfedhp.runs.scores import Matrix, Scores

_RISE: Final = 1.0  # points of accuracy
_ADVICE: Final = "check the scale of the inputs (data.scale) and the rates (`sfedhp check`)"


def hints(rows: Sequence[Row], scores: Scores | None, *, finished: bool) -> list[str]:
    """What to tell the user about a run that did not diverge, one sentence each.

    Args:
        rows: its history.
        scores: of its last state, where they are known.
        finished: whether all rounds are done; while some are left, accuracy may well be rising.
    """
    found = [one_class(scores.confusion) if scores is not None else None, never_moved(rows)]
    if finished:
        found.append(still_rising(rows))
    return [sentence for sentence in found if sentence is not None]


def one_class(confusion: Mapping[str, Matrix]) -> str | None:
    """A kind of model predicts the same class for every test row, although these have several classes."""
    named = []
    for kind, matrix in confusion.items():
        predicted = [label for label, column in enumerate(zip(*matrix, strict=True)) if any(column)]
        if len(predicted) == 1 and sum(any(row) for row in matrix) > 1:
            named.append(f"{kind.upper()} (class {predicted[0]})")
    return f"All predictions of {listed(named)} are one class: {_ADVICE}." if named else None


def never_moved(rows: Sequence[Row]) -> str | None:
    """The accuracy of a kind of model is the same in all evaluations, of which there are at least two.

    An accuracy of 100 % cannot rise, and is not meant.
    """
    named = [
        f"{kind.upper()} ({values[0]:.2f} %)"
        for kind, values in _accuracies(rows)
        if len(values) > 1 and values[0] < 100 and set(values) == {values[0]}
    ]
    if not named:
        return None
    return f"The accuracy of {listed(named)} never moved from its first evaluation: {_ADVICE}."


def still_rising(rows: Sequence[Row]) -> str | None:
    """The accuracy of a kind of model was still rising at the end; see `rises`."""
    named = [f"{kind.upper()} by {rise:.1f} points" for kind, rise in rises(rows).items()]
    if not named:
        return None
    return (
        f"Accuracy was still rising at the end ({listed(named)} in the last third): use more rounds, for "
        f"example rounds={2 * rows[-1]['round']}."
    )


def rises(rows: Sequence[Row]) -> dict[str, float]:
    """By how many points each kind of model was still rising at the end; only those above one point.

    The best accuracy of the last third of the evaluations counts, against that of the third before. A third
    of n evaluations is n // 3 of them, so that there are at least three.
    """
    found = {}
    for kind, values in _accuracies(rows):
        third = len(values) // 3
        if third and (rise := max(values[-third:]) - max(values[-2 * third : -third])) > _RISE:
            found[kind] = rise
    return found


def _accuracies(rows: Sequence[Row]) -> Iterator[tuple[str, list[float]]]:
    """The accuracies of each kind of model, evaluation by evaluation."""
    for kind in KINDS:
        yield kind, [row[kind] for row in rows if row.get(kind) is not None]

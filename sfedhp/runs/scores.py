"""How each client and each class is served by the models of a run: computed once, at its end.

A run's folder has them as `clients.csv`, `classes.csv` and `confusion.json`. They follow the definition of
the history: the mean of a column of `clients.csv`, weighted by the test rows, is the history's accuracy.
Where no classes are predicted, there are `clients.csv` with the main metric instead, and `scores.json`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfedhp.core.checksums import DamagedError, checked, checksum, with_checksum
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.core.text import printable
from sfedhp.data import Federation
from sfedhp.engine.state import State
from sfedhp.nn.problems import CLASSIFICATION, METRICS, Metric
from sfedhp.runs.counting import Scored
from sfedhp.runs.metrics import KINDS, value_of
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.record_file import Row

_CLIENTS, _CLASSES, _CONFUSION = "clients.csv", "classes.csv", "confusion.json"
SUMMARY_FILE: Final = "scores.json"  # instead of the other two where no classes are predicted
_CHECKSUMS: Final = "checksums"  # in the last of the files, of the tables
SCORE_FILES: Final = (_CLIENTS, _CLASSES, _CONFUSION)
_ALONE: Final = "alone"  # the main metric of the client's model trained alone, where a comparison has it
_NAMES: Final = ("name", "edge_name")  # more columns, where the data has names
_CLASS_COLUMNS: Final = ("class", "test_rows", *KINDS)

Matrix = Sequence[Sequence[int]]  # test rows by true class (first) and predicted class


class Scores(NamedTuple):
    """How the models of one run serve each client and each class, after a round."""

    round: int
    # In the order of edges and seats; None where a client or the method has no figure. In the folders of a
    # comparison each row has `alone`, the accuracy of the client's model trained alone.
    clients: list[Row]
    classes: list[Row]
    confusion: Mapping[str, Matrix]  # by kind of model; empty without classes
    metric: Metric = CLASSIFICATION.main  # what the figures of PM, EM and GM are

    @property
    def used(self) -> str:
        """The kind of model that a client would use: PM, else EM, else GM."""
        known = self.confusion or {
            kind for kind in KINDS if any(row[kind] is not None for row in self.clients)
        }
        return next((kind for kind in KINDS if kind in known), KINDS[0])

    def ranked_clients(self) -> list[Row]:
        """The clients from the worst served to the best, by the model that each would use.

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


def write_scores(folder: Path, scores: Scores) -> None:
    """Write the files of a run into its folder."""
    _write(folder, scores, _alone(folder))


def write_alone(folder: Path, alone: Mapping[int, float]) -> None:
    """Add to `clients.csv` of a run what each client's model has that was trained alone, by client.

    Raises:
        InputError: the files of the scores cannot be read.
    """
    if (scores := read_scores(folder)) is not None:
        _write(folder, scores, alone)


def _write(folder: Path, scores: Scores, alone: Mapping[int, float]) -> None:
    """Write all files; the last one has the checksums of all: it goes first, and comes last."""
    last = folder / (_CONFUSION if scores.confusion else SUMMARY_FILE)
    last.unlink(missing_ok=True)
    tables = {_CLIENTS: _clients_table(scores, alone)}
    if scores.confusion:
        tables[_CLASSES] = _table(_CLASS_COLUMNS, scores.classes)
    for name, text in tables.items():
        write_text(folder / name, text)
    sums = {name: checksum(text.encode()) for name, text in tables.items()}
    content: Row = {"round": scores.round, **scores.confusion, **_class_names(scores.classes)}
    if not scores.confusion:
        content["metric"] = scores.metric.name
    write_text(last, json.dumps(with_checksum({**content, _CHECKSUMS: sums})) + "\n")


def read_scores(folder: Path) -> Scores | None:
    """The files in the folder of a run; None where one of them is missing.

    Raises:
        InputError: a file cannot be read.
    """
    files = (_CLIENTS, SUMMARY_FILE) if (folder / SUMMARY_FILE).exists() else SCORE_FILES
    if not all((folder / name).exists() for name in files):
        return None
    try:
        last = folder / (_CONFUSION if files == SCORE_FILES else SUMMARY_FILE)
        content = checked(last, parse_json(last.read_bytes()))
        for name, expected in content.pop(_CHECKSUMS, {}).items():
            if name in files and checksum((folder / name).read_bytes()) != expected:
                raise DamagedError(f"{folder / name} is damaged: its content does not match its checksum.")
        metric = METRICS[content.get("metric", CLASSIFICATION.main.name)]
        clients = [_client(row, metric) for row in _read_table(folder / _CLIENTS)]
        if files != SCORE_FILES:
            return Scores(int(content["round"]), clients, [], {}, metric)
        return Scores(
            int(content["round"]),
            clients,
            [_class(row) for row in _read_table(folder / _CLASSES)],
            {kind: _matrix(content[kind]) for kind in KINDS if kind in content},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, csv.Error) as error:
        names = ", ".join(files)
        why = str(error) if isinstance(error, DamagedError) else f"One of {names} is damaged."
        raise InputError(
            f"{why} Delete {names} in {folder}, and `sfedhp resume {folder}` writes them again."
        ) from None


def _matrix(value: Any) -> Matrix:
    """A square of counts.

    Raises:
        ValueError: it is not one.
    """
    for row in value:
        if len(row) != len(value) or not all(type(count) is int and count >= 0 for count in row):
            raise ValueError("it is not a square of counts")
    matrix: Matrix = value
    return matrix


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
    """Where the method sees the client of each edge and seat, among all clients of a run."""
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
            | {name: getattr(holding, name) for name in _NAMES if getattr(holding, name)}
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


def _clients_table(scores: Scores, alone: Mapping[int, float]) -> str:
    """`clients.csv`: the figures of PM, EM and GM have the names that they have in the history."""
    names = {kind: scores.metric.column(kind) for kind in KINDS}
    columns = ["client", "edge", "seat", "rows", "test_rows", "labels", *names.values(), "loss", "label_rows"]
    rows = [{names.get(name, name): value for name, value in row.items()} for row in scores.clients]
    if alone:
        columns, rows = [*columns, _ALONE], [row | {_ALONE: alone.get(row["client"])} for row in rows]
    return _table(columns, rows)


def _table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The rows as CSV, with their names where they have some; a figure that is missing is empty."""
    text = io.StringIO(newline="")
    names = [name for name in _NAMES if any(name in row for row in rows)]
    table = csv.DictWriter(text, [*columns, *names], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _alone(folder: Path) -> dict[int, float]:
    """What `write_alone` has written before: a run that is resumed keeps it."""
    found = _read_table(folder / _CLIENTS) if (folder / _CLIENTS).exists() else []
    return {int(row["client"]): float(row[_ALONE]) for row in found if row.get(_ALONE)}


def _client(row: Mapping[str, str], metric: Metric) -> Row:
    counts = {name: int(row[name]) for name in ("client", "edge", "seat", "rows", "test_rows")}
    texts = {"labels": row["labels"], "label_rows": row.get("label_rows")}  # None of earlier versions
    figures = {kind: _figure(row[metric.column(kind)]) for kind in KINDS}
    figures |= {name: _figure(row[name]) for name in ("loss", _ALONE) if name in row}
    return counts | texts | figures | _names(row)


def _class(row: Mapping[str, str]) -> Row:
    counts: dict[str, Any] = {name: int(row[name]) for name in ("class", "test_rows")}
    return counts | {kind: _figure(row[kind]) for kind in KINDS} | _names(row)


def _class_names(classes: Sequence[Row]) -> dict[str, list[str]]:
    """The names of the classes, for the file of the confusion; nothing where they have none."""
    names = [row["name"] for row in classes if "name" in row]
    return {"classes": names} if names else {}


def _names(row: Mapping[str, str]) -> dict[str, str]:
    """The names in a row of a file, which anybody may have written."""
    return {name: printable(row[name]) for name in _NAMES if row.get(name)}


def _figure(text: str) -> float | None:
    return float(text) if text else None

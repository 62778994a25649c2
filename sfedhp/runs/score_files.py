"""The files of a run's scores: `clients.csv`, `classes.csv` and `confusion.json`, or `scores.json`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sfedhp.core.checksums import DamagedError, checked, checksum, with_checksum
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_text
from sfedhp.core.parsing import parse_json
from sfedhp.core.text import printable
from sfedhp.nn.problems import CLASSIFICATION, KINDS, METRICS, Metric
from sfedhp.runs.record_file import Row
from sfedhp.runs.scores import NAMES, Matrix, Scores

_CLIENTS, _CLASSES, _CONFUSION = "clients.csv", "classes.csv", "confusion.json"
SUMMARY_FILE: Final = "scores.json"  # instead of the other two where no classes are predicted
_CHECKSUMS: Final = "checksums"  # in the last of the files, of the tables
SCORE_FILES: Final = (_CLIENTS, _CLASSES, _CONFUSION)
_ALONE: Final = "alone"  # the main metric of the client's model trained alone, if a comparison has it
_CLASS_COLUMNS: Final = ("class", "test_rows", *KINDS)


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
    """The files in the folder of a run; None if one of them is missing.

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
    """A square matrix of counts.

    Raises:
        ValueError: it is not one.
    """
    for row in value:
        if len(row) != len(value) or not all(type(count) is int and count >= 0 for count in row):
            raise ValueError("it is not a square of counts")
    matrix: Matrix = value
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
    names = [name for name in NAMES if any(name in row for row in rows)]
    table = csv.DictWriter(text, [*columns, *names], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _alone(folder: Path) -> dict[int, float]:
    """What `write_alone` has written before: a run that is resumed keeps it, unless the files are damaged."""
    try:
        scores = read_scores(folder)
    except InputError:
        return {}
    known = [] if scores is None else scores.clients
    return {row["client"]: row[_ALONE] for row in known if row.get(_ALONE) is not None}


def _client(row: Mapping[str, str], metric: Metric) -> Row:
    counts = {name: int(row[name]) for name in ("client", "edge", "seat", "rows", "test_rows")}
    texts = {"labels": row["labels"], "label_rows": row.get("label_rows")}  # None in older folders
    figures = {kind: _figure(row[metric.column(kind)]) for kind in KINDS}
    figures |= {name: _figure(row[name]) for name in ("loss", _ALONE) if name in row}
    return counts | texts | figures | _names(row)


def _class(row: Mapping[str, str]) -> Row:
    counts: dict[str, Any] = {name: int(row[name]) for name in ("class", "test_rows")}
    return counts | {kind: _figure(row[kind]) for kind in KINDS} | _names(row)


def _class_names(classes: Sequence[Row]) -> dict[str, list[str]]:
    """The names of the classes, for the file of the confusion; nothing if they have none."""
    names = [row["name"] for row in classes if "name" in row]
    return {"classes": names} if names else {}


def _names(row: Mapping[str, str]) -> dict[str, str]:
    """The names in a row of a file, which is untrusted."""
    return {name: printable(row[name]) for name in NAMES if row.get(name)}


def _figure(text: str) -> float | None:
    return float(text) if text else None

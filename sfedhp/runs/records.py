"""The history of a run, a row a round, and what is reported of it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sfedhp.core.errors import InputError
from sfedhp.core.files import fsync, write_atomically, write_text
from sfedhp.runs.metrics import KINDS

Row = dict[str, Any]


def summarize(rows: Sequence[Row], norm_statistics: str = "averaged") -> Row:
    """The final metrics as one flat object; accuracies in percent, None where the method has no such model.

    `_last` is the last evaluated round, `_best` the best round chosen on the test data itself, `_validated`
    the round chosen on validation data (None without such data).
    """
    evaluated = [row for row in rows if row.get("train_loss") is not None]
    last: Row = evaluated[-1] if evaluated else {}
    summary: Row = {}
    for kind in KINDS:
        scored = [row for row in evaluated if kind in row]
        best = max(scored, key=lambda row: row[kind], default={})
        validating = [row for row in scored if f"{kind}_validation" in row]
        validated: Row = max(validating, key=lambda row: row[f"{kind}_validation"], default={})
        summary |= {
            f"{kind}_last": last.get(kind),
            f"{kind}_best": best.get(kind),
            f"{kind}_best_round": best.get("round"),
            f"{kind}_validated": validated.get(kind),
            f"{kind}_validated_round": validated.get("round"),
            f"{kind}_macro_last": last.get(f"{kind}_macro"),
            f"{kind}_spread_last": last.get(f"{kind}_spread"),
            f"{kind}_worst_last": last.get(f"{kind}_worst"),
        }
        if kind != "pm":
            # A model without running statistics scores the same with either.
            summary[f"{kind}_local_last"] = last.get(f"{kind}_local", last.get(kind))
            summary[f"{kind}_averaged_last"] = last.get(f"{kind}_averaged", last.get(kind))
    summary |= {"train_loss_last": last.get("train_loss"), "norm_statistics": norm_statistics}
    summary |= {name: last.get(name) for name in ("density_global", "density_edge", "density_client")}
    for kind in ("bytes", "formula"):
        directions = sorted({name for row in rows for name in row if name.startswith(f"{kind}_")})
        summary |= {name: sum(row.get(name, 0) for row in rows) for name in directions}
        summary[f"{kind}_total"] = sum(summary[name] for name in directions)
    costs = sorted({name for row in rows for name in row if name.startswith("link_")})
    summary |= {name: sum(row.get(name, 0) for row in rows) for name in costs}
    summary |= {name: last[name] for name in sorted(last) if name.startswith("density_")}
    summary["rounds"] = rows[-1]["round"] if rows else 0
    summary["seconds"] = sum(row["seconds"] for row in rows)
    return summary


class History:
    """The rows so far, kept in memory and, where there is a file, in `history.jsonl` at once.

    The bytes of each member, where they were counted, go to `ledger.jsonl` beside it.
    """

    def __init__(self, path: Path | None = None, rows: Iterable[Row] = ()):
        self.rows = list(rows)
        self._path = path
        if path is not None:
            _write_rows(path, self.rows)
            last = self.rows[-1]["round"] if self.rows else 0
            if self._ledger.exists():
                _write_rows(self._ledger, read_rows(self._ledger, last))

    def append(self, row: Row, members: Row | None = None) -> None:
        """Add a round; a metric that is not finite is written as null.

        Args:
            row: its metrics and costs.
            members: the bytes of each member by direction, where they were counted.
        """
        row = {name: value if _is_finite(value) else None for name, value in row.items()}
        self.rows.append(row)
        if self._path is not None:
            _append_row(self._path, row)
            if members is not None:
                _append_row(self._ledger, {"round": row["round"], **members})

    def fsync(self) -> None:
        """Wait until the rows are on the disk, before a checkpoint is written that needs them."""
        if self._path is not None:
            for path in (self._path, self._ledger):
                if path.exists():
                    fsync(path)

    def close(self) -> None:
        """Write all rows as a table, `history.csv`, beside the history."""
        if self._path is None:
            return
        names = list(dict.fromkeys(name for row in self.rows for name in row))

        def write(path: Path) -> None:
            with path.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, names)
                table.writeheader()
                table.writerows(self.rows)

        write_atomically(self._path.with_suffix(".csv"), write)

    @property
    def _ledger(self) -> Path:
        assert self._path is not None
        return self._path.with_name("ledger.jsonl")


def _append_row(path: Path, row: Row) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _write_rows(path: Path, rows: Iterable[Row]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def read_rows(path: Path, upto: int) -> list[Row]:
    """The rows of a history file up to a round, as far as they can be read: a crash cuts a line short."""
    rows = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict) or not isinstance(row.get("round"), int):
                break
            if row["round"] <= upto:
                rows.append(row)
    return rows


def rows_of_run(path: Path, upto: int) -> list[Row]:
    """The rows of a run that is resumed after a round: there is one for each round before.

    Raises:
        InputError: the file was cut, deleted, or written by two.
    """
    rows = read_rows(path, upto)
    if [row["round"] for row in rows if "seconds" in row] != list(range(1, upto + 1)):
        raise InputError(
            f"{path} does not hold each of the rounds 1 to {upto} once, in order, as their checkpoint needs "
            f"it: put it back from a copy, or start a new run."
        )
    return rows

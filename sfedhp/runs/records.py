"""The history of a run, one row per round, and its summary."""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from sfedhp.core.checksums import DamagedError
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_atomically
from sfedhp.nn.problems import CLASSIFICATION, KINDS, METRICS, Problem
from sfedhp.runs.record_file import RecordFile, Row


def summarize(
    rows: Sequence[Row], norm_statistics: str = "averaged", problem: Problem = CLASSIFICATION
) -> Row:
    """The final metrics as one flat object; accuracies in percent, None if the method has no such model.

    `_last` is the last evaluated round, `_best` the best round chosen on the test data itself, `_validated`
    the round chosen on validation data (None without such data), both by the main metric of the problem.
    """
    main = problem.main

    def best_of(candidates: Iterable[Row], column: str) -> Row:
        known = [row for row in candidates if row.get(column) is not None]
        choose = max if main.higher_is_better else min
        return choose(known, key=lambda row: row[column], default={})

    evaluated = [row for row in rows if row.get("train_loss") is not None]
    last: Row = evaluated[-1] if evaluated else {}
    summary: Row = {}
    for kind in KINDS:
        for metric in (METRICS[name] for name in (*problem.reported, *problem.extra)):
            column = metric.column(kind)
            if metric == main:
                best, validated = best_of(evaluated, column), best_of(evaluated, f"{column}_validation")
            elif metric.name in problem.extra and not any(column in row for row in evaluated):
                continue
            summary |= {
                f"{column}_last": last.get(column),
                f"{column}_best": best.get(column),
                **({f"{column}_best_round": best.get("round")} if metric == main else {}),
                f"{column}_validated": validated.get(column),
                **({f"{column}_validated_round": validated.get("round")} if metric == main else {}),
                f"{column}_macro_last": last.get(f"{column}_macro"),
                f"{column}_spread_last": last.get(f"{column}_spread"),
                f"{column}_worst_last": last.get(f"{column}_worst"),
            }
            if kind != "pm" and metric == main:
                # A model without running statistics scores the same with either.
                summary[f"{column}_local_last"] = last.get(f"{column}_local", last.get(column))
                summary[f"{column}_averaged_last"] = last.get(f"{column}_averaged", last.get(column))
    summary |= {"problem": problem.name, "metric": main.name}
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
    if rows and "epsilon" in rows[-1]:
        summary["epsilon"] = rows[-1]["epsilon"]  # spent
    summary["seconds"] = sum(row["seconds"] for row in rows)
    return summary


class History:
    """The rows so far: in `history.jsonl` if there is a folder, so that memory does not grow, else in memory.

    The bytes of each member, where they were counted, go to `ledger.jsonl` beside it.
    """

    def __init__(self, path: Path | None = None, rows: Iterable[Row] = (), *, written: bool = False):
        """Begin, or continue, the history of a run.

        Args:
            path: of `history.jsonl`; None: rows stay in memory.
            rows: so far.
            written: whether the files hold just these rows, and are left as they are.
        """
        self._memory: list[Row] = []
        self._file = None if path is None else RecordFile(path)
        self._ledger = None if path is None else RecordFile(path.with_name("ledger.jsonl"))
        self._first_evaluated: Row | None = None
        self._holding = False  # whether files are kept open
        self._counted = False  # whether the ledger was begun
        self._last_members: Row | None = None
        self.last: Row | None = None  # the newest row
        rows = list(rows)
        for row in rows:
            self._note(row)
        if self._file is None or self._ledger is None:
            self._memory = rows
            return
        if written:
            return
        self._file.write(rows)
        if self._ledger.path.exists():
            last = rows[-1]["round"] if rows else 0
            self._ledger.write(read_rows(self._ledger.path, last))

    @property
    def rows(self) -> list[Row]:
        """All rows; read from the file if there is one."""
        return list(self._rows())

    @property
    def ends(self) -> list[Row]:
        """The first row with a training loss, and the newest row, which show whether a run diverges."""
        ends = (self._first_evaluated, self.last)
        return [row for place, row in enumerate(ends) if row is not None and row not in ends[:place]]

    def append(self, row: Row, members: Row | None = None) -> None:
        """Add a round; a metric that is not finite is written as null.

        Args:
            row: its metrics and costs.
            members: the bytes of each member by direction, where they were counted.

        Raises:
            OSError: the disk is full, or the folder of the run is gone.
        """
        row = {name: value if _is_finite(value) else None for name, value in row.items()}
        self._note(row)
        self._last_members = members
        if self._file is None or self._ledger is None:
            self._memory.append(row)
            return
        self._file.append(row)
        if members is not None:
            if not self._counted and not self._ledger.path.exists():
                self._ledger.write([])
                if self._holding:
                    self._ledger.hold()
            self._counted = True
            self._ledger.append({"round": row["round"], **members})

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the files open, so that `rescue` can read them even if their folder is removed."""
        files = [file for file in (self._file, self._ledger) if file is not None]
        self._holding = True
        for file in files:
            file.hold()
        try:
            yield
        finally:
            self._holding = False
            for file in files:
                file.release()

    def rescue(self, folder: Path) -> None:
        """Write all rows into another folder, also those that could not be written to their own."""
        for file, newest in ((self._file, self.last), (self._ledger, self._last_members)):
            if file is None or newest is None or self.last is None:
                continue
            rows = [row for row in file.held_rows() if row["round"] < self.last["round"]]
            RecordFile(folder / file.path.name).write([*rows, {"round": self.last["round"], **newest}])

    def fsync(self) -> None:
        """Wait until the rows are on the disk, before a checkpoint is written that needs them."""
        for file in (self._file, self._ledger):
            if file is not None and file.path.exists():
                file.fsync()

    def close(self) -> None:
        """Write all rows as a table, `history.csv`, beside the history."""
        if self._file is None:
            return
        names = list(dict.fromkeys(name for row in self._rows() for name in row))

        def write(path: Path) -> None:
            with path.open("w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, names)
                table.writeheader()
                table.writerows(self._rows())

        write_atomically(self._file.path.with_suffix(".csv"), write)

    def _rows(self) -> Iterator[Row]:
        return iter(self._memory) if self._file is None else self._file.rows()

    def _note(self, row: Row) -> None:
        self.last = row
        if self._first_evaluated is None and "train_loss" in row:
            self._first_evaluated = row


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def read_rows(path: Path, upto: int) -> list[Row]:
    """The rows of a file up to a round, as far as they are whole: a run may be writing it."""
    rows = []
    with contextlib.suppress(FileNotFoundError, DamagedError):
        for row in RecordFile(path).rows():
            if row["round"] <= upto:
                rows.append(row)
    return rows


def rows_of_run(path: Path, upto: int, *, ledger: bool = False) -> list[Row]:
    """The rows of a run that is resumed after a round: there is one for each round before.

    Args:
        path: of the history, or of the ledger.
        upto: the round.
        ledger: whether it is the ledger, whose rows have no times.

    Raises:
        DamagedError: a line up to that round is not as it was written.
        InputError: the file was cut, deleted, or written by two.
    """
    rows: list[Row] = []
    with contextlib.suppress(FileNotFoundError):
        counted = (row for row in RecordFile(path).rows() if ledger or "seconds" in row)
        rows = list(islice(counted, upto))  # later rounds are computed again
    expected, found = list(range(1, upto + 1)), [row["round"] for row in rows]
    if found != expected:
        pairs = zip_longest(expected, found)
        number = next(line for line, (right, there) in enumerate(pairs, 1) if right != there)
        raise InputError(
            f"{path} does not hold each of the rounds 1 to {upto} once, in order, as the checkpoint needs "
            f"them (row {number} is not round {number}): put it back from a copy, or start a new run."
        )
    return rows


def whole_rounds(path: Path) -> int:
    """How many rounds, from the first, a history or ledger holds undamaged and in order."""
    count = 0
    with contextlib.suppress(FileNotFoundError, DamagedError):
        for row in RecordFile(path).rows():
            if row["round"] != count + 1:
                break
            count += 1
    return count

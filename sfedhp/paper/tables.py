"""Rows and claims as tables of text, for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sfedhp.paper.published import DATASET_NAMES, TABLES, cells, overview
from sfedhp.paper.rows import Row, table1_rows
from sfedhp.paper.studies import MAIN_READING, READINGS
from sfedhp.paper.verdicts import Claim

NEAR = 2.5  # points within which a cell counts as reproduced
_STATISTICS_NOTE = (
    "(local): the global weights with each client's own batch-norm statistics, as the paper's numbers must "
    "have been computed. Such a model has partly seen the client's labels, and there is none for a newcomer. "
    "(averaged): the same weights with the mean of all clients' statistics, one model for all clients. The "
    "statistics of clients with two labels differ so much that their mean suits no client well."
)


@dataclass(frozen=True)
class TextTable:
    """A table of text with a title. The first column is text, the others are numbers, except the last few."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: int = 0  # how many of the last columns are text too

    def is_text(self, column: int) -> bool:
        """Whether a column is text, which is aligned left."""
        return not column or column >= len(self.heads) - self.text_columns


def text_tables(rows: Sequence[Row], tables: Iterable[str]) -> list[TextTable]:
    """The named tables of the paper, each under the readings that it was run with."""
    made = []
    for table in tables:
        for reading in READINGS:
            if table == "table1":
                made.append(_overview(rows, reading))
            elif table in TABLES:
                made.append(_detail(rows, table, reading))
    return [table for table in made if table.lines]


def claims_table(claims: Sequence[Claim]) -> TextTable:
    """A table with a line for each claim."""
    return TextTable(
        "The paper's claims",
        ("claim", "verdict", "decided by"),
        tuple((claim.statement, claim.verdict, claim.rule) for claim in claims),
        text_columns=2,
    )


def agreement(rows: Sequence[Row]) -> list[str]:
    """Sentences on how many of the paper's cells ours are near to, of all methods and of sFedHP alone."""
    lines = []
    for reading in READINGS:
        for title, tables in (("tables 2–5", list(TABLES)[:4]), ("tables 6–7", list(TABLES)[4:])):
            for whose, method in (("all methods", None), ("sFedHP", "sfedhp")):
                wanted = sum(map(len, (_numbers(table, method) for table in tables)))
                mine = [
                    row
                    for row in rows
                    if row.table in tables
                    and row.reading == reading
                    and row.paper is not None
                    and method in (None, row.method)
                ]
                if mine or reading == MAIN_READING:
                    lines.append(f"{reading}, {title}, {whose}: {_nearness(mine, wanted)}")
    return lines


def _numbers(table: str, method: str | None) -> list[float]:
    """The accuracies that the paper prints in a table, of one method or of all."""
    known = [cell for cell in cells() if (cell.dataset, cell.setting) == TABLES[table]]
    known = [cell for cell in known if method in (None, cell.method)]
    return [number for cell in known for number in (cell.pm, cell.gm) if number is not None]


def _nearness(rows: Sequence[Row], wanted: int) -> str:
    missing = f"{wanted - len(rows)} of {wanted} cells are not run yet"
    if not rows:
        return f"{missing}."
    best = sum(abs(row.gap or 0.0) <= NEAR for row in rows)
    last = sum(abs(row.ours_last - (row.paper or 0.0)) <= NEAR for row in rows)
    return (
        f"{best} of {len(rows)} cells ({100 * best / len(rows):.0f} %) are within {NEAR} points of the paper "
        f"by the best round, {last} ({100 * last / len(rows):.0f} %) by the last"
        f"{f'; {missing}' if len(rows) < wanted else ''}."
    )


def _overview(rows: Sequence[Row], reading: str) -> TextTable:
    shown = {(row.dataset, row.setting, row.method): row for row in table1_rows(rows, reading)}
    lines = []
    for cell in overview():
        row = shown.get((cell.dataset, cell.setting, cell.method))
        if row is not None:
            lines.append(
                (
                    f"{DATASET_NAMES[cell.dataset]} S{cell.setting} {row.variant}",
                    f"{cell.gm:.2f} ± {cell.spread:.2f}",
                    *_accuracies(row),
                    f"{row.gap:+.2f}",
                    str(row.seeds),
                )
            )
    return TextTable(
        f"Table 1: global models, {reading}",
        ("cell", "paper", "last", "validated", "best*", "best − paper", "seeds"),
        tuple(lines),
        "* chosen on test data, the paper's likely convention; ± is the standard deviation over seeds.",
    )


def _detail(rows: Sequence[Row], table: str, reading: str) -> TextTable:
    dataset, setting = TABLES[table]
    mine = [row for row in rows if (row.table, row.reading) == (table, reading)]
    lines = []
    for row in mine:
        lines.append(
            (
                f"{row.variant} {row.metric.upper()}{f' ({row.statistics})' if row.statistics else ''}",
                "–" if row.paper is None else f"{row.paper:.2f}",
                *_accuracies(row),
                "–" if row.gap is None or not row.evaluated else f"{row.gap:+.2f}",
                f"{row.seeds}{f', {row.diverged} diverged' if row.diverged else ''}",
            )
        )
    return TextTable(
        f"Table {table[5:]}: {DATASET_NAMES[dataset]}, Setting {setting}, {reading}",
        ("cell", "paper", "last", "validated", "best*", "best − paper", "seeds"),
        tuple(lines),
        _STATISTICS_NOTE if any(row.statistics for row in mine) else "",
    )


def _accuracies(row: Row) -> tuple[str, str, str]:
    if not row.evaluated:
        return "–", "–", "–"
    return (
        _accuracy(row.ours_last, row.sd),
        _accuracy(row.ours_validated, row.sd_validated),
        _accuracy(row.ours_best, row.sd_best),
    )


def _accuracy(value: float | None, spread: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"

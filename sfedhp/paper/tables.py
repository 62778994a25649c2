"""Rows and claims as tables of text, for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sfedhp.paper.published import (
    DATASET_NAMES,
    PAPER_KINDS,
    TABLES,
    Cell,
    cells,
    in_words,
    overview,
    row_name,
)
from sfedhp.paper.rows import TAIL, Row, table1_rows
from sfedhp.paper.studies import MAIN_READING, OTHER_READING, READINGS
from sfedhp.paper.verdicts import Claim

NEAR: Final = 2.5  # points within which a cell counts as reproduced
NOT_RUN: Final = "not run yet"
_STATISTICS_NOTE: Final = (
    "(local): the global weights with each client's own batch-norm statistics, as the paper's numbers were "
    "probably computed. Such a model has partly seen the client's labels, and a newcomer has no such model. "
    "(averaged): the same weights with the mean of all clients' statistics, one model for all clients. The "
    "statistics of clients with two labels differ so much that their mean suits no client well."
)
_NOTE: Final = (
    f"“last five”: mean of the last {TAIL} evaluations and its 95 % interval over seeds; claims are "
    "judged by it. “best” is chosen on test data, the paper's likely convention."
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


def text_tables(rows: Sequence[Row], tables: Iterable[str], *, whole: bool = True) -> list[TextTable]:
    """The named tables of the paper, under each reading that has rows.

    Args:
        rows: of all studies, or of those that were asked for.
        tables: which.
        whole: whether the tables of the main reading also have the paper's cells that were not run.
    """
    made = []
    for table in tables:
        if table == "table1":
            made += [_overview(rows, reading, whole) for reading in (MAIN_READING, OTHER_READING)]
        elif table in TABLES:
            made += [_detail(rows, table, reading, whole) for reading in READINGS]
    return [table for table in made if table.lines]


def claims_table(claims: Sequence[Claim], beside: Sequence[Claim]) -> TextTable:
    """A line for each claim, with its verdict under another reading beside."""
    return TextTable(
        "The claims",
        ("claim", "verdict", "number", OTHER_READING),
        tuple(
            (claim.name, claim.verdict, claim.number, other.verdict)
            for claim, other in zip(claims, beside, strict=True)
        ),
        text_columns=3,
    )


def title_of(table: str, reading: str) -> str:
    """The title of a table under a reading."""
    if table == "table1":
        return f"Table 1: global models, {reading}"
    dataset, setting = TABLES[table]
    return f"Table {table[5:]}: {DATASET_NAMES[dataset]}, Setting {setting}, {reading}"


def _overview(rows: Sequence[Row], reading: str, whole: bool) -> TextTable:
    shown, other = (
        {(row.dataset, row.setting, row.method): row for row in table1_rows(rows, each)}
        for each in (reading, OTHER_READING)
    )
    lines = []
    for cell in overview():
        key = (cell.dataset, cell.setting, cell.method)
        if key in shown or (whole and reading == MAIN_READING and (shown or other)):
            name = f"{DATASET_NAMES[cell.dataset]} S{cell.setting} {row_name(cell.method, cell.lam, None)}"
            paper = f"{cell.gm:.2f} ± {cell.spread:.2f}"
            lines.append((name, paper, *_figures(shown.get(key), other.get(key), reading)))
    return TextTable(title_of("table1", reading), _heads(reading), tuple(lines), _NOTE)


def _detail(rows: Sequence[Row], table: str, reading: str, whole: bool) -> TextTable:
    mine, other = (
        [row for row in rows if (row.table, row.reading) == (table, each)]
        for each in (reading, OTHER_READING)
    )
    beside = {(row.variant, row.kind, row.statistics, row.paper): row for row in other}
    lines, shown = [], []
    for cell, kind in _cells_of(table):
        row = next((row for row in mine if _is_of(row, cell, kind)), None)
        counterpart = next((row for row in other if _is_of(row, cell, kind)), None)
        if row is not None or (whole and reading == MAIN_READING and (mine or other)):
            name = row_name(cell.method, cell.lam, cell.alpha) if row is None else in_words(row.variant)
            shown.append(row)
            statistics = f" ({row.statistics})" if row is not None and row.statistics else ""
            number = f"{getattr(cell, kind):.2f}"
            lines.append((f"{name} {kind.upper()}{statistics}", number, *_figures(row, counterpart, reading)))
    for row in mine:
        if row not in shown:
            statistics = f" ({row.statistics})" if row.statistics else ""
            same = beside.get((row.variant, row.kind, row.statistics, row.paper))
            name = f"{in_words(row.variant)} {row.kind.upper()}{statistics}"
            lines.append((name, "–", *_figures(row, same, reading)))
    note = f"{_NOTE} {_STATISTICS_NOTE}" if any(row.statistics for row in mine) else _NOTE
    return TextTable(title_of(table, reading), _heads(reading), tuple(lines), note)


def _cells_of(table: str) -> Iterator[tuple[Cell, str]]:
    """The accuracies that the paper prints in a table."""
    for cell in cells():
        if (cell.dataset, cell.setting) == TABLES[table]:
            yield from ((cell, kind) for kind in PAPER_KINDS if getattr(cell, kind) is not None)


def _is_of(row: Row, cell: Cell, kind: str) -> bool:
    same = (row.method, row.kind) == (cell.method, kind) and row.paper is not None
    return same and cell.lam in (None, row.lam) and cell.alpha in (None, row.alpha)


def _heads(reading: str) -> tuple[str, ...]:
    beside = (OTHER_READING,) if reading == MAIN_READING else ()
    return ("cell", "paper", "last five", "last", "validated", "best", "best − paper", "seeds", *beside)


def _figures(row: Row | None, other: Row | None, reading: str) -> tuple[str, ...]:
    """The columns after the paper's, with the other reading's figure beside the main one's."""
    beside = () if reading != MAIN_READING else ("–" if other is None else f"{other.ours_tail:.2f}",)
    if row is None:
        return (NOT_RUN, "–", "–", "–", "–", "0", *beside)
    seeds = f"{row.seeds}{f', {row.diverged} diverged' if row.diverged else ''}"
    if not row.evaluated:
        return ("–", "–", "–", "–", "–", seeds, *beside)
    return (
        f"{row.ours_tail:.2f}" if row.ci is None else f"{row.ours_tail:.2f} ± {row.ci:.2f}",
        f"{row.ours_last:.2f}",
        "–" if row.ours_validated is None else f"{row.ours_validated:.2f}",
        f"{row.ours_best:.2f}",
        "–" if row.gap is None else f"{row.gap:+z.2f}",
        seeds,
        *beside,
    )

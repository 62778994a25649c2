"""Rows and claims as tables of text, for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sfedhp.paper.published import DATASET_NAMES, TABLES, overview
from sfedhp.paper.rows import Row, table1_rows
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
    """The named tables of the paper; those without rows are left out."""
    made = []
    for table in tables:
        if table == "table1":
            made.append(_overview(rows))
        elif table in TABLES:
            readings = dict.fromkeys(row.reading.partition(", ")[0] for row in rows if row.table == table)
            made += [_detail(rows, table, reading) for reading in readings]
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
    """Sentences on how many of our cells are near the paper's, of all methods and of sFedHP alone."""
    lines = []
    for title, tables in (("tables 2–5", list(TABLES)[:4]), ("tables 6–7", list(TABLES)[4:])):
        known = [row for row in rows if row.table in tables and row.paper is not None]
        two = [row for row in known if row.compared]
        for whose, mine in (
            ("all methods", two),
            ("sFedHP", [row for row in two if row.method == "sfedhp"]),
            ("with five labels per client as in the text", [row for row in known if not row.compared]),
        ):
            if mine:
                best = sum(abs(row.gap or 0.0) <= NEAR for row in mine)
                last = sum(abs(row.ours_last - (row.paper or 0.0)) <= NEAR for row in mine)
                lines.append(
                    f"{title}, {whose}: {best} of {len(mine)} cells ({100 * best / len(mine):.0f} %) are "
                    f"within {NEAR} points of the paper by the best round, {last} "
                    f"({100 * last / len(mine):.0f} %) by the last."
                )
    return lines


def _overview(rows: Sequence[Row]) -> TextTable:
    shown = {(row.dataset, row.setting, row.method): row for row in table1_rows(rows) if row.compared}
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
        "Table 1: global models",
        ("cell", "paper", "last", "validated", "best*", "best − paper", "seeds"),
        tuple(lines),
        "* chosen on test data, the paper's likely convention; ± is the standard deviation over seeds.",
    )


def _detail(rows: Sequence[Row], table: str, reading: str) -> TextTable:
    dataset, setting = TABLES[table]
    mine = [row for row in rows if row.table == table and row.reading.partition(", ")[0] == reading]
    lines = []
    for row in mine:
        statistics = row.reading.partition(", ")[2]
        lines.append(
            (
                f"{row.variant} {row.metric.upper()}{f' ({statistics})' if statistics else ''}",
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
        _STATISTICS_NOTE if any(row.reading.endswith(", local") for row in mine) else "",
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

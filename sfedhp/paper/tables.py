"""The tables people read: rows and claims as lines of text, for the terminal, Markdown and HTML alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sfedhp.paper.published import TABLES, overview
from sfedhp.paper.rows import Row, first_table
from sfedhp.paper.table_claims import NAMES
from sfedhp.paper.verdicts import Claim

NEAR = 2.5  # points within which a cell counts as reproduced
_WORN = (
    "(local): the global weights, worn by each client with its own batch-norm statistics, as the paper's "
    "numbers must have been. Such a model has in part seen the client's labels, and there is none to give to "
    "a newcomer. (averaged): the same weights with the mean of all clients' statistics, one model for "
    "everybody; the statistics of clients with two labels differ so much that their mean fits nobody well."
)


@dataclass(frozen=True)
class Sheet:
    """A table with a title; the first column is words, the others figures, but perhaps the last ones."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""
    words: int = 0  # how many of the last columns are words too

    def wordy(self, column: int) -> bool:
        """Whether a column is words, which are read from the left."""
        return not column or column >= len(self.heads) - self.words


def sheets(rows: Sequence[Row], tables: Iterable[str]) -> list[Sheet]:
    """Those of the tables asked for that have rows."""
    made = []
    for table in tables:
        if table == "table1":
            made.append(_overview(rows))
        elif table in TABLES:
            readings = dict.fromkeys(row.reading.partition(", ")[0] for row in rows if row.table == table)
            made += [_detail(rows, table, reading) for reading in readings]
    return [sheet for sheet in made if sheet.lines]


def claims_sheet(claims: Sequence[Claim]) -> Sheet:
    """One line a claim."""
    return Sheet(
        "The paper's claims",
        ("claim", "verdict", "decided by"),
        tuple((claim.statement, claim.verdict, claim.rule) for claim in claims),
        words=2,
    )


def agreement(rows: Sequence[Row]) -> list[str]:
    """How many of the paper's cells we come near to: of all, and of sFedHP's own, by both conventions."""
    lines = []
    for title, tables in (("tables 2–5", list(TABLES)[:4]), ("tables 6–7", list(TABLES)[4:])):
        known = [row for row in rows if row.table in tables and row.paper is not None]
        two = [row for row in known if row.compared]
        for whose, mine in (
            ("all methods", two),
            ("sFedHP", [row for row in two if row.method == "sfedhp"]),
            ("as the text has it (five labels a client)", [row for row in known if not row.compared]),
        ):
            if mine:
                best = sum(abs(row.gap or 0.0) <= NEAR for row in mine)
                last = sum(abs(row.ours_last - (row.paper or 0.0)) <= NEAR for row in mine)
                lines.append(
                    f"{title}, {whose}: within {NEAR} points of the paper are {best} of {len(mine)} cells "
                    f"({100 * best / len(mine):.0f} %) on the best round, {last} "
                    f"({100 * last / len(mine):.0f} %) on the last."
                )
    return lines


def _overview(rows: Sequence[Row]) -> Sheet:
    found = {(row.dataset, row.setting, row.method): row for row in first_table(rows) if row.compared}
    lines = []
    for cell in overview():
        row = found.get((cell.dataset, cell.setting, cell.method))
        if row is not None:
            lines.append(
                (
                    f"{NAMES[cell.dataset]} S{cell.setting} {row.variant}",
                    f"{cell.gm:.2f} ± {cell.spread:.2f}",
                    *_figures(row),
                    f"{row.gap:+.2f}",
                    str(row.seeds),
                )
            )
    return Sheet(
        "Table 1: global models",
        ("cell", "paper", "last", "validated", "best*", "best − paper", "seeds"),
        tuple(lines),
        "* chosen on test data, the paper's likely convention; ± is the standard deviation over seeds.",
    )


def _detail(rows: Sequence[Row], table: str, reading: str) -> Sheet:
    dataset, setting = TABLES[table]
    mine = [row for row in rows if row.table == table and row.reading.partition(", ")[0] == reading]
    lines = []
    for row in mine:
        wears = row.reading.partition(", ")[2]
        lines.append(
            (
                f"{row.variant} {row.metric.upper()}{f' ({wears})' if wears else ''}",
                "–" if row.paper is None else f"{row.paper:.2f}",
                *_figures(row),
                "–" if row.gap is None or not row.evaluated else f"{row.gap:+.2f}",
                f"{row.seeds}{f', {row.diverged} diverged' if row.diverged else ''}",
            )
        )
    return Sheet(
        f"Table {table[5:]}: {NAMES[dataset]}, Setting {setting}, {reading}",
        ("cell", "paper", "last", "validated", "best*", "best − paper", "seeds"),
        tuple(lines),
        _WORN if any(row.reading.endswith(", local") for row in mine) else "",
    )


def _figures(row: Row) -> tuple[str, str, str]:
    if not row.evaluated:
        return "–", "–", "–"
    return (
        _figure(row.ours_last, row.sd),
        _figure(row.ours_validated, row.sd_validated),
        _figure(row.ours_best, row.sd_best),
    )


def _figure(value: float | None, spread: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"

"""How near our numbers are to the paper's, and whether above or below."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sfedhp.paper.published import METHOD_NAMES, PAPER_KINDS, TABLES, cells
from sfedhp.paper.rows import Row
from sfedhp.paper.studies import MAIN_READING, READINGS
from sfedhp.paper.tables import TextTable

WITHIN: Final = (0.5, 1.0, 2.0, 2.5)  # points
# The tables of the fully connected networks, and those of CIFAR-10.
GROUPS: Final = {"tables 2–5": tuple(TABLES)[:4], "tables 6–7 (CIFAR-10)": tuple(TABLES)[4:]}


@dataclass(frozen=True)
class Agreement:
    """Some cells of the paper, and our rows for them."""

    wanted: int  # cells that the paper has
    rows: Sequence[Row]

    @property
    def gaps(self) -> list[float]:
        """Ours − paper, by the best round."""
        return [row.gap for row in self.rows if row.gap is not None]

    @property
    def missing(self) -> int:
        """Cells that were not run yet."""
        return self.wanted - len(self.rows)

    def within(self, points: float) -> int:
        """How many cells are at most this far from the paper's; a cell that was not run is not."""
        return sum(abs(gap) <= points for gap in self.gaps)


def agreement(
    rows: Sequence[Row],
    tables: Iterable[str] = TABLES,
    methods: Iterable[str] = METHOD_NAMES,
    kinds: Iterable[str] = PAPER_KINDS,
    reading: str = MAIN_READING,
) -> Agreement:
    """The cells of these tables, methods and kinds of models under one reading."""
    tables, methods, kinds = set(tables), set(methods), set(kinds)
    places = {TABLES[table] for table in tables}
    mine = [cell for cell in cells() if (cell.dataset, cell.setting) in places and cell.method in methods]
    wanted = sum(getattr(cell, kind) is not None for cell in mine for kind in kinds)
    return Agreement(
        wanted,
        [
            row
            for row in rows
            if row.paper is not None
            and row.reading == reading
            and row.table in tables
            and row.method in methods
            and row.kind in kinds
        ],
    )


def sign_tables(rows: Sequence[Row], reading: str = MAIN_READING) -> list[TextTable]:
    """Ours − paper by method and kind of model, which shows a bias to one side."""
    found = []
    for group, tables in GROUPS.items():
        lines = [
            _sign_line(f"{name} {kind.upper()}", agreement(rows, tables, [method], [kind], reading))
            for method, name in METHOD_NAMES.items()
            for kind in PAPER_KINDS
        ]
        lines += [
            _sign_line(f"all {kind.upper()}", agreement(rows, tables, kinds=[kind], reading=reading))
            for kind in PAPER_KINDS
        ]
        every = agreement(rows, tables, reading=reading)
        lines = [*lines, _sign_line("all", every)] if every.rows else [_sign_line("all", every)]
        note = (
            "Gaps by the best round, the paper's likely convention; those of the last five evaluations in "
            "the last column. A cell that was not run is not within any distance."
        )
        heads = ("method, tier", "run", "mean", "median", "above", "below", *_within_heads(), "last five")
        kept = tuple(line for line in lines if line)
        found.append(TextTable(f"Ours − paper, {group}, {reading}", heads, kept, note))
    return found


def reading_table(rows: Sequence[Row]) -> TextTable:
    """How near each reading of the paper is to its numbers; then two readings on the cells that both have."""
    lines = []
    for reading in READINGS:
        for group, tables in GROUPS.items():
            for whose, methods in (("all methods", tuple(METHOD_NAMES)), ("sFedHP", ("sfedhp",))):
                found = agreement(rows, tables, methods, reading=reading)
                lines.append(_reading_line(f"{reading}, {group}, {whose}", found))
    for other in READINGS:
        pair = in_both(rows, other)
        if other != MAIN_READING and pair[0].rows:
            for reading, found in zip((MAIN_READING, other), pair, strict=True):
                lines.append(_reading_line(f"{reading}, where {MAIN_READING} and {other} both ran", found))
    return TextTable(
        "Agreement by reading",
        ("cells of the paper", "run", "mean distance", *_within_heads()),
        tuple(lines),
        "Best round. Cells within a number of points of the paper, and their share of those that were run. "
        "Readings did not run the same cells: only the last lines compare like with like.",
    )


def in_both(rows: Sequence[Row], other: str) -> tuple[Agreement, Agreement]:
    """The cells that ran under the main reading and another: by the main one, and by the other."""
    held = [
        {(row.table, row.variant, row.kind): row for row in agreement(rows, reading=reading).rows}
        for reading in (MAIN_READING, other)
    ]
    both = [key for key in held[0] if key in held[1]]
    main, beside = (Agreement(len(both), [cells[key] for key in both]) for cells in held)
    return main, beside


def _reading_line(name: str, found: Agreement) -> tuple[str, ...]:
    size = f"{statistics.fmean(map(abs, found.gaps)):.2f}" if found.gaps else "–"
    return (name, _run(found), size, *_shares(found))


def _sign_line(name: str, found: Agreement) -> tuple[str, ...]:
    """A line of the sign table; empty if the paper has no such cell."""
    if not found.wanted:
        return ()
    if not found.rows:
        return (name, _run(found), *("–",) * (5 + len(WITHIN)))
    gaps = found.gaps
    tails = [row.ours_tail - (row.paper or 0.0) for row in found.rows]
    return (
        name,
        _run(found),
        f"{statistics.fmean(gaps):+z.2f}",
        f"{statistics.median(gaps):+z.2f}",
        str(sum(gap > 0 for gap in gaps)),
        str(sum(gap < 0 for gap in gaps)),
        *(str(found.within(points)) for points in WITHIN),
        f"{statistics.fmean(tails):+z.2f}",
    )


def _run(found: Agreement) -> str:
    return f"{len(found.rows)} of {found.wanted}"


def _shares(found: Agreement) -> list[str]:
    run = len(found.rows)
    return [
        f"{found.within(points)} ({100 * found.within(points) / run:.0f} %)" if run else "–"
        for points in WITHIN
    ]


def _within_heads() -> list[str]:
    return [f"≤ {points:g}" for points in WITHIN]

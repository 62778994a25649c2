"""The cells that are far from the paper's numbers, with what was found about them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from sfedhp.paper.published import in_words, place_of
from sfedhp.paper.rows import EARLY, Row
from sfedhp.paper.studies import MAIN_READING
from sfedhp.paper.tables import NEAR, TextTable


@dataclass(frozen=True)
class Note:
    """What was found about some cells; None matches any value."""

    dataset: str
    method: str
    text: str
    setting: int | None = None
    lam: float | None = None
    kind: str | None = None

    def matches(self, row: Row) -> bool:
        """Whether the note is about this row."""
        wanted = (self.dataset, self.method, self.setting, self.lam, self.kind)
        given = (row.dataset, row.method, row.setting, row.lam, row.kind)
        return all(want in (None, have) for want, have in zip(wanted, given, strict=True))


@cache
def notes() -> tuple[Note, ...]:
    """The notes on cells, from the file `notes.toml`."""
    text = files("sfedhp.paper").joinpath("notes.toml").read_text(encoding="utf-8")
    return tuple(Note(**note) for note in tomllib.loads(text)["note"])


def distant_cells(rows: Sequence[Row], reading: str = MAIN_READING) -> TextTable:
    """The table of the cells that are more than `NEAR` points from the paper's, under one reading."""
    lines = tuple(
        (
            f"{place_of(row.table)} {in_words(row.variant)} {row.kind.upper()}",
            f"{row.paper:.2f}",
            f"{row.ours_best:.2f}",
            f"{row.gap:+z.2f}",
            "; ".join((_where_reached(row, rows), *(note.text for note in notes() if note.matches(row)))),
        )
        for row in rows
        if row.gap is not None and abs(row.gap) > NEAR and row.reading == reading
    )
    return TextTable(
        f"Cells more than {NEAR} points from the paper, {reading}",
        ("cell", "paper", "ours, best", "gap", "what we found"),
        lines,
        "A curve passes a number in the first evaluated round whose mean over seeds is not below it.",
        text_columns=1,
    )


def _where_reached(row: Row, rows: Sequence[Row]) -> str:
    """The round in which our curve passes the paper's number, or else the best row of the table."""
    if row.reached is not None:
        known = row.early is not None and row.reached != EARLY
        early = f", and has {row.early:.1f} after {EARLY}" if known else ""
        return f"our curve passes the paper's number at round {row.reached}{early}"
    same = (row.table, row.kind, row.reading)
    alike = [each for each in rows if (each.table, each.kind, each.reading) == same and each.compared]
    best = max((each for each in alike if "joins later" not in each.variant), key=lambda each: each.ours_best)
    missed = f"not reached in {row.rounds} rounds"
    if best == row:
        return f"{missed}; no other row is better"
    verb = "reaches it" if best.ours_best >= (row.paper or 0.0) else "comes closest"
    return f"{missed}; {in_words(best.variant)} {verb} with {best.ours_best:.1f}"

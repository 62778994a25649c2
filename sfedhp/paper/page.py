"""The page of all results: a summary, then every claim, table and figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sfedhp.core.files import write_text
from sfedhp.paper.agreement import agreement, reading_table, sign_tables
from sfedhp.paper.content import Content
from sfedhp.paper.distant_cells import distant_cells
from sfedhp.paper.figures import NEEDS_MATPLOTLIB, PANELS, can_draw, draw
from sfedhp.paper.page_html import to_html
from sfedhp.paper.page_markdown import to_markdown
from sfedhp.paper.pictures import cell_map, table_curves
from sfedhp.paper.results import Results
from sfedhp.paper.studies import MAIN_READING, READINGS
from sfedhp.paper.surprises import surprises
from sfedhp.paper.tables import text_tables


class Page(Content):
    """The page, as HTML and as Markdown."""

    def html(self) -> str:
        """The page as one HTML file."""
        return to_html(self)

    def markdown(self) -> str:
        """The page as Markdown, with the drawings as files in images/."""
        return to_markdown(self)

    @property
    def drawings(self) -> dict[str, str]:
        """Every drawing there is, by file name."""
        more = {each.picture: each.drawing for each in self.surprises}
        return {name: svg for name, svg in {**self.pictures, **more, **self.figures}.items() if svg}

    def write_html(self, path: str | Path) -> None:
        """Write the HTML page; its folder is made."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.html())

    def write_markdown(self, path: str | Path) -> None:
        """Write the Markdown page, and its drawings to images/ beside it."""
        images = Path(path).parent / "images"
        images.mkdir(parents=True, exist_ok=True)
        for name, drawing in self.drawings.items():
            write_text(images / f"{name}.svg", drawing)
        write_text(Path(path), self.markdown())


def make_page(results: Results) -> Page:
    """The page of all results; without matplotlib it has no drawings, and its text says why."""
    drawn = can_draw()
    tables = dict.fromkeys(["table1", *results.tables.values()])
    rows = results.rows
    return Page(
        results.claims,
        results.claims_beside,
        coverage(results) + ("" if drawn else f" {NEEDS_MATPLOTLIB}"),
        _tiles(results),
        [*sign_tables(rows), reading_table(rows)],
        {"cell-map": cell_map(rows), "table-curves": table_curves(results.table_curves)} if drawn else {},
        surprises(results, drawn=drawn),
        [
            *text_tables(rows, tables),
            *(table for reading in READINGS if (table := distant_cells(rows, reading)).lines),
        ],
        {
            name: draw(name, lines) if lines and drawn else ""
            for name, lines in results.curves.items()
            if results.tables[name] in PANELS
        },
        devices(results.devices),
    )


def _tiles(results: Results) -> list[tuple[str, str]]:
    found, own = agreement(results.rows), agreement(results.rows, methods=["sfedhp"])
    return [
        (f"{len(found.rows)} of {found.wanted}", "cells of the paper run"),
        (f"{found.within(2.5)} of {len(found.rows)}", "of them within 2.5 points"),
        (f"{own.within(2)} of {len(own.rows)}", "of sFedHP's within 2 points"),
    ]


def devices(made_by_study: Mapping[str, Mapping[str, int]]) -> str:
    """Which devices made the runs, in a sentence; those of most runs first."""
    every: Counter[str] = Counter()
    for made in made_by_study.values():
        every.update(made)
    parts: list[str] = []
    for device, count in every.most_common():
        studies = [
            name if made[device] == sum(made.values()) else f"{name} ({made[device]} of {sum(made.values())})"
            for name, made in made_by_study.items()
            if made.get(device)
        ]
        words = f": {', '.join(studies)}" if parts else ""
        parts.append(f"{count} on {'a CPU' if device == 'cpu' else device}{words}")
    return f"Runs by the device that made them: {'; '.join(parts)}." if parts else ""


def coverage(results: Results) -> str:
    """What was run under the main reading, and how near it is to the paper, in two sentences."""
    found = agreement(results.rows)
    seeds = sorted({row.seeds for row in found.rows})
    spread = "no" if not seeds else f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        f"Under the reading {MAIN_READING} (every edge holds all ten labels), {len(found.rows)} of the "
        f"paper's {found.wanted} cells were run with {spread} seeds; {found.missing} are not run yet. Of the "
        f"cells that were run, {found.within(2.5)} are within 2.5 points of the paper, {found.within(1)} "
        "within 1."
    )

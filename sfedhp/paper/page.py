"""The page of all results: claims, tables and figures, as self-contained HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from sfedhp.core.files import write_text
from sfedhp.paper.distant_cells import distant_cells
from sfedhp.paper.figures import draw, title
from sfedhp.paper.results import Results
from sfedhp.paper.studies import READINGS
from sfedhp.paper.tables import TextTable, agreement, text_tables
from sfedhp.paper.verdicts import Claim

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1d2733; background: #fff }
h1 { font-size: 1.7rem } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #d5dbe1 }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .8rem; border-bottom: 1px solid #e6eaee; text-align: right; white-space: nowrap }
td:first-child, th:first-child, td.words { text-align: left; white-space: normal }
tr:hover td { background: #f3f6f9 }
.wide { overflow-x: auto }
.claim { border-left: 6px solid #9aa5b1; padding: .2rem 1rem; margin: 1rem 0 }
.claim b { display: inline-block; padding: 0 .5rem; border-radius: .3rem; color: white; background: #77818c }
.holds { border-color: #2e7d4f } .holds b { background: #2e7d4f }
.partly { border-color: #b7791f } .partly b { background: #b7791f }
.not { border-color: #b23b3b } .not b { background: #b23b3b }
.rule, .note { color: #5a6672; font-size: .9rem } ul { margin: .3rem 0 } svg { max-width: 100%; height: auto }
"""
_CLASSES = {"holds": "holds", "holds partly": "partly", "does not hold": "not"}
_READING = (
    "Accuracies are in percent. PM is the accuracy of the personalized models, GM that of the global model, "
    "both on each client's own test rows. “Last” is the last round, “validated” the round chosen on "
    "validation data, “best” the best evaluated round. That one is chosen on the test data itself: too "
    "optimistic, but likely the paper's convention. The bands around the curves of a figure are one standard "
    "deviation over seeds."
)


@dataclass(frozen=True)
class Page:
    """The claims, tables and figures of the page."""

    claims: Sequence[Claim]
    tables: Sequence[TextTable]
    agreement: Sequence[str]  # sentences on how well our numbers and the paper's agree
    figures: Mapping[str, str]  # SVG by the name of the study

    def html(self) -> str:
        """The page as one HTML file."""
        body = [
            "<h1>sFedHP: the paper and this implementation, side by side</h1>",
            f"<p>{escape(_READING)}</p>",
            "<ul>"
            + "".join(f"<li><b>{name}</b>: {escape(words)}</li>" for name, words in READINGS.items())
            + "</ul>",
            "<h2>The paper's claims</h2>",
            *(_claim_html(claim) for claim in self.claims),
            "<h2>Agreement</h2>",
            "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in self.agreement) + "</ul>",
            *(_table_html(table) for table in self.tables),
        ]
        for name, drawing in self.figures.items():
            body += [f"<h2>{escape(title(name))}</h2>", drawing[drawing.index("<svg") :]]
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>sFedHP reproduced</title><style>{_STYLE}</style></head><body>"
            + "\n".join(body)
            + "</body></html>\n"
        )

    def markdown(self) -> str:
        """The page as Markdown, with the figures as files in images/."""
        images = [f"![{title(name)}](images/{name}.svg)" for name in self.figures]
        parts = [
            "# The paper and this implementation, side by side",
            "Written from the records in `results/` by:",
            "```sh\nsfedhp reproduce --show --markdown docs/reproduction.md\n```",
            _READING,
            "The paper's text can be read in several ways. Its numbers fit the first one best, so claims are "
            "judged by it:",
            "\n".join(f"- **{name}**: {words}" for name, words in READINGS.items()),
            "## Agreement",
            "\n".join(f"- {line}" for line in self.agreement),
            "## The paper's claims",
            *(_claim_markdown(claim) for claim in self.claims),
            "## Tables",
            *(_table_markdown(table) for table in self.tables),
            *(("## Figures",) if images else ()),
            *images,
        ]
        return "\n\n".join(parts) + "\n"

    def write_html(self, path: str | Path) -> None:
        """Write the HTML page; its folder is made."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self.html())

    def write_markdown(self, path: str | Path) -> None:
        """Write the Markdown page, and its figures to images/ beside it."""
        images = Path(path).parent / "images"
        images.mkdir(parents=True, exist_ok=True)
        for name, drawing in self.figures.items():
            write_text(images / f"{name}.svg", drawing)
        write_text(Path(path), self.markdown())


def make_page(results: Results) -> Page:
    """The page of all results; drawing its figures needs matplotlib.

    Raises:
        InputError: matplotlib is not installed.
    """
    tables = dict.fromkeys(["table1", *results.tables.values()])
    return Page(
        results.claims,
        [
            *text_tables(results.rows, tables),
            *(table for reading in READINGS if (table := distant_cells(results.rows, reading)).lines),
        ],
        agreement(results.rows),
        {name: draw(name, lines) for name, lines in results.curves.items() if lines},
    )


def _claim_html(claim: Claim) -> str:
    findings = "".join(f"<li>{escape(finding)}</li>" for finding in claim.findings)
    return (
        f'<div class="claim {_CLASSES.get(claim.verdict, "")}"><p>{escape(claim.statement)} '
        f'<b>{claim.verdict}</b></p><p class="rule">{escape(claim.rule)}</p><ul>{findings}</ul></div>'
    )


def _table_html(table: TextTable) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = "".join(
        "<tr>" + "".join(_cell_html(table, column, cell) for column, cell in enumerate(line)) + "</tr>"
        for line in table.lines
    )
    parts = [
        f"<h2>{escape(table.title)}</h2>",
        f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>',
    ]
    return "\n".join([*parts, *((f'<p class="note">{escape(table.note)}</p>',) if table.note else ())])


def _cell_html(table: TextTable, column: int, cell: str) -> str:
    kind = ' class="words"' if column and table.is_text(column) else ""
    return f"<td{kind}>{escape(cell)}</td>"


def _claim_markdown(claim: Claim) -> str:
    lines = [f"### {claim.statement}", "", f"**{claim.verdict}.** {claim.rule}"]
    return "\n".join(
        [*lines, *(("", *(f"- {finding}" for finding in claim.findings)) if claim.findings else ())]
    )


def _table_markdown(table: TextTable) -> str:
    columns = range(len(table.heads))
    rows = [
        f"### {table.title}",
        "",
        f"| {' | '.join(table.heads)} |",
        f"|{''.join(' --- |' if table.is_text(column) else ' ---: |' for column in columns)}",
        *(f"| {' | '.join(line)} |" for line in table.lines),
    ]
    return "\n".join([*rows, *(("", table.note) if table.note else ())])

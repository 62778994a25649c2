"""The page of all results as one HTML file."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Final, get_args

from sfedhp.paper.content import EXPLANATION, PICTURES, Content, anchor, head_of, short_name
from sfedhp.paper.figures import title
from sfedhp.paper.studies import MAIN_READING, OTHER_READING, READINGS
from sfedhp.paper.tables import NOT_RUN, TextTable
from sfedhp.paper.verdicts import RULE, Cell, Claim, Verdict

_STYLE: Final = """
:root { --ink: #1f2937; --soft: #64748b; --line: #e2e8f0; --good: #15803d; --part: #b45309; --bad: #b91c1c }
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: #f8fafc; margin: 0 }
header { background: #0f172a; color: white; padding: 3rem max(1.5rem, calc(50vw - 36rem)) 2.2rem }
header h1 { margin: 0 0 .6rem; font-size: 2.1rem; line-height: 1.2; letter-spacing: -.02em }
header p { margin: 0; max-width: 52rem; color: #cbd5e1 }
main { max-width: 75rem; margin: auto; padding: 1rem 1.5rem 4rem }
h2 { font-size: 1.5rem; margin: 3rem 0 1rem; letter-spacing: -.01em }
h3 { font-size: 1.1rem; margin: 1.5rem 0 .4rem }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.6rem, 1fr)); gap: .8rem }
.tiles { margin-top: 1.6rem }
.tile { background: #1e293b; border-radius: .7rem; padding: .8rem 1.1rem }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2 }
.tile span { color: #94a3b8; font-size: .85rem }
.card { background: white; border: 1px solid var(--line); border-radius: .8rem; padding: 1rem 1.4rem }
.card { margin: 1rem 0 }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 2rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem }
td, th { padding: .38rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th { color: var(--soft); font-weight: 600 }
td:first-child, th:first-child, td.words, th.words { text-align: left; white-space: normal }
tr:last-child td { border-bottom: 0 } tbody tr:hover td { background: #f1f5f9 } td.none { color: #94a3b8 }
.wide { overflow-x: auto }
.pill { display: inline-block; border-radius: 1rem; padding: .1rem .75rem; font-size: .85rem }
.pill { background: #e2e8f0; color: #475569; white-space: nowrap; font-weight: 600 }
.pill.holds, .pill.true { background: #dcfce7; color: var(--good) }
.pill.partly, .pill.level { background: #fef3c7; color: var(--part) }
.pill.not, .pill.false { background: #fee2e2; color: var(--bad) }
.pill.open { background: #e0e7ff; color: #4338ca }
.faint { opacity: .6 } a { color: #1d4ed8; text-decoration: none } a:hover { text-decoration: underline }
blockquote { margin: .4rem 0; padding-left: 1rem; border-left: 4px solid var(--line); color: var(--soft) }
details { background: white; border: 1px solid var(--line); border-radius: .6rem }
details { margin: .5rem 0; padding: 0 1.2rem }
summary { cursor: pointer; padding: .7rem 0; font-weight: 600 } details[open] { padding-bottom: 1rem }
summary .pill { float: right } .note { color: var(--soft); font-size: .88rem }
svg { max-width: 100%; height: auto }
.claims td { vertical-align: baseline }
@media (max-width: 40rem) {
  header { padding: 2rem 1rem 1.6rem } header h1 { font-size: 1.5rem } main { padding: .5rem .8rem 3rem }
  .card { padding: .7rem .9rem } .tile b { font-size: 1.3rem } td, th { padding: .3rem .5rem }
  .pair { grid-template-columns: 1fr }
  .claims thead { display: none } .claims tr { display: grid; grid-template-columns: 1fr auto }
  .claims tr { gap: .1rem .6rem; padding: .6rem 0; border-bottom: 1px solid var(--line) }
  .claims td { border: 0; padding: 0 } .claims td:nth-child(n + 3) { grid-column: 1 / -1; font-size: .85rem }
  .claims td:nth-child(4)::before { content: attr(data-head) ": " } .drawing { overflow-x: auto }
  .drawing svg { min-width: 38rem }
}
@media print { body { background: white } header { -webkit-print-color-adjust: exact } }
"""
# Links to what is folded open it.
_SCRIPT: Final = """
const reveal = () => { const at = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (at) { if (at.tagName === "DETAILS") at.open = true; at.scrollIntoView() } };
addEventListener("hashchange", reveal); reveal();
"""
_CLASSES: Final = {
    "holds": "holds",
    "holds partly": "partly",
    "does not hold": "not",
    "not decided": "open",
    "true": "true",
    "level": "level",
    "false": "false",
}


def to_html(page: Content) -> str:
    """The page; everything except the summary is folded."""
    body = [
        "<h2>The claims</h2>",
        _summary(page),
        "<h2>Ours − paper</h2>",
        *(f'<div class="card"><h3>{escape(table.title)}</h3>{_table(table)}</div>' for table in page.signs),
        *(_picture(words, page.pictures.get(name, "")) for name, words in PICTURES.items()),
        "<h2>Three surprises</h2>",
        *(
            f'<div class="card pair"><div><h3>{escape(each.title)}</h3><p>{escape(each.text)}</p></div>'
            f"<div>{_inline(each.drawing)}</div></div>"
            for each in page.surprises
        ),
        "<h2>How to read this</h2>",
        f'<div class="card"><p>{escape(EXPLANATION)}</p><ul>',
        *(f"<li><b>{name}</b>: {escape(words)}</li>" for name, words in READINGS.items()),
        f"</ul><p>{escape(RULE)}</p><p>{escape(page.made_on)}</p></div>",
        "<h2>The claims, one by one</h2>",
        *(_claim(claim, beside) for claim, beside in zip(page.claims, page.claims_beside, strict=True)),
        "<h2>Tables</h2>",
        *(_fold(table.title, _table(table)) for table in page.tables),
        "<h2>Figures</h2>",
        *(
            _fold(title(name), _inline(drawing) or f"<p>{NOT_RUN}</p>")
            for name, drawing in page.figures.items()
        ),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>sFedHP reproduced</title><style>{_STYLE}</style></head><body>"
        "<header><h1>sFedHP: the paper and this implementation, side by side</h1>"
        f"<p>{escape(page.coverage)}</p>{_tiles(page)}</header><main>"
        + "\n".join(body)
        + f"</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _tiles(page: Content) -> str:
    verdicts = Counter(claim.verdict for claim in page.claims)
    tiles = [
        *page.tiles,
        *((str(verdicts[word]), f"claims: {word}") for word in get_args(Verdict) if verdicts[word]),
    ]
    boxes = "".join(f'<div class="tile"><b>{number}</b><span>{words}</span></div>' for number, words in tiles)
    return f'<div class="tiles">{boxes}</div>'


def _summary(page: Content) -> str:
    rows = "".join(
        f'<tr><td><a href="#{anchor(claim.title)}">{escape(claim.name)}</a></td>'
        f'<td class="words">{_pill(claim.verdict)}</td><td class="words">{escape(claim.number)}</td>'
        f'<td class="words faint" data-head="{OTHER_READING}">{_pill(beside.verdict)}</td>'
        f'<td class="words">{_places(claim)}</td></tr>'
        for claim, beside in zip(page.claims, page.claims_beside, strict=True)
    )
    heads = "".join(
        f'<th class="words">{head}</th>' for head in ("claim", "verdict", "number", OTHER_READING, "cells")
    )
    note = (
        f"Verdicts are those of the reading {MAIN_READING}: {READINGS[MAIN_READING]}. The column "
        f"{OTHER_READING} has the verdicts by the other reading: {READINGS[OTHER_READING]}."
    )
    return (
        '<div class="card wide"><table class="claims"><thead><tr>'
        f'{heads}</tr></thead><tbody>{rows}</tbody></table><p class="note">{escape(note)}</p></div>'
    )


def _places(claim: Claim) -> str:
    return " ".join(f'<a href="#{anchor(head_of(place))}">{short_name(place)}</a>' for place in claim.places)


def _pill(word: str) -> str:
    return f'<span class="pill {_CLASSES.get(word, "")}">{word}</span>'


def _claim(claim: Claim, beside: Claim) -> str:
    cells = "".join(_cell_line(cell) for cell in claim.cells if cell.outcome != "not run yet")
    findings = "".join(f"<li>{escape(finding)}</li>" for finding in claim.findings)
    return (
        f'<details id="{anchor(claim.title)}"><summary>{escape(claim.title)} {_pill(claim.verdict)}</summary>'
        f"<blockquote>{escape(claim.statement)}</blockquote><p>{escape(claim.rule)} By the reading "
        f"{OTHER_READING}: {beside.verdict}.</p><ul>{findings}</ul>"
        + (f'<div class="wide"><table><tbody>{cells}</tbody></table></div>' if cells else "")
        + "</details>"
    )


def _cell_line(cell: Cell) -> str:
    about, numbers = cell.about, cell.line()[len(cell.about) + 2 :]
    return (
        f'<tr><td>{escape(about)}</td><td class="words">{escape(numbers)}</td>'
        f'<td class="words">{_pill(cell.outcome)}</td></tr>'
    )


def _picture(words: str, drawing: str) -> str:
    return f'<div class="card"><h3>{escape(words)}</h3>{_inline(drawing)}</div>' if drawing else ""


def _inline(drawing: str) -> str:
    """A drawing as an element of the page."""
    return f'<div class="drawing">{drawing[drawing.index("<svg") :]}</div>' if drawing else ""


def _fold(head: str, body: str) -> str:
    return f'<details id="{anchor(head)}"><summary>{escape(head)}</summary>{body}</details>'


def _table(table: TextTable) -> str:
    heads = "".join(
        f"<th{_words(table, column)}>{escape(head)}</th>" for column, head in enumerate(table.heads)
    )
    rows = "".join(
        f"<tr>{''.join(_table_cell(table, column, cell) for column, cell in enumerate(line))}</tr>"
        for line in table.lines
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{note}'
    )


def _table_cell(table: TextTable, column: int, cell: str) -> str:
    attribute = ' class="none"' if cell in (NOT_RUN, "–") else _words(table, column)
    return f"<td{attribute}>{escape(cell)}</td>"


def _words(table: TextTable, column: int) -> str:
    return ' class="words"' if column and table.is_text(column) else ""

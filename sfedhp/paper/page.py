"""One self-contained HTML page, and the same as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from sfedhp.paper.tables import Sheet
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
_KINDS = {"holds": "holds", "holds partly": "partly", "does not hold": "not"}
_READING = (
    "Accuracies are percent; PM is the personalized models, GM the global one, both on every client's own "
    "test rows. “Last” is the last round, “validated” the round chosen on validation data, “best” the best "
    "evaluated round, chosen on the test data itself: too optimistic, but the paper's likely convention. The "
    "bands around a figure's curves are one standard deviation over seeds."
)


def html(
    claims: Sequence[Claim], sheets: Sequence[Sheet], lines: Sequence[str], figures: Mapping[str, str]
) -> str:
    """The page.

    Args:
        claims: with their verdicts.
        sheets: the tables.
        lines: sentences on how well ours and the paper agree.
        figures: SVG by title.
    """
    body = [
        "<h1>sFedHP: the paper and this implementation, side by side</h1>",
        f"<p>{escape(_READING)}</p>",
        "<h2>The paper's claims</h2>",
        *(_claim(claim) for claim in claims),
        "<h2>Agreement</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>",
    ]
    for sheet in sheets:
        body.append(f"<h2>{escape(sheet.title)}</h2>")
        heads = "".join(f"<th>{escape(head)}</th>" for head in sheet.heads)
        rows = "".join(
            "<tr>" + "".join(_cell(sheet, turn, cell) for turn, cell in enumerate(line)) + "</tr>"
            for line in sheet.lines
        )
        body.append(f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>')
        if sheet.note:
            body.append(f'<p class="note">{escape(sheet.note)}</p>')
    for title, drawing in figures.items():
        body += [f"<h2>{escape(title)}</h2>", drawing[drawing.index("<svg") :]]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>sFedHP reproduced</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _cell(sheet: Sheet, column: int, words: str) -> str:
    kind = ' class="words"' if column and sheet.wordy(column) else ""
    return f"<td{kind}>{escape(words)}</td>"


def markdown(
    claims: Sequence[Claim], sheets: Sequence[Sheet], lines: Sequence[str], images: Mapping[str, str]
) -> str:
    """The same for the docs; images are files by title."""
    parts = [
        "# The paper and this implementation, side by side",
        "Written from the records in `results/` by:",
        "```sh\nsfedhp reproduce --show --markdown docs/reproduction.md\n```",
        _READING,
        "## Agreement",
        "\n".join(f"- {line}" for line in lines),
        "## The paper's claims",
        *(_claim_markdown(claim) for claim in claims),
        "## Tables",
        *(_sheet_markdown(sheet) for sheet in sheets),
        *(("## Figures",) if images else ()),
        *(f"![{title}]({path})" for title, path in images.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _sheet_markdown(sheet: Sheet) -> str:
    rows = [
        f"### {sheet.title}",
        "",
        f"| {' | '.join(sheet.heads)} |",
        f"|{''.join(' --- |' if sheet.wordy(turn) else ' ---: |' for turn in range(len(sheet.heads)))}",
        *(f"| {' | '.join(line)} |" for line in sheet.lines),
    ]
    return "\n".join([*rows, *(("", sheet.note) if sheet.note else ())])


def _claim_markdown(claim: Claim) -> str:
    lines = [f"### {claim.statement}", "", f"**{claim.verdict}.** {claim.rule}"]
    return "\n".join(
        [*lines, *(("", *(f"- {finding}" for finding in claim.findings)) if claim.findings else ())]
    )


def _claim(claim: Claim) -> str:
    findings = "".join(f"<li>{escape(finding)}</li>" for finding in claim.findings)
    return (
        f'<div class="claim {_KINDS.get(claim.verdict, "")}"><p>{escape(claim.statement)} '
        f'<b>{claim.verdict}</b></p><p class="rule">{escape(claim.rule)}</p><ul>{findings}</ul></div>'
    )

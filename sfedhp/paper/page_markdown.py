"""The page of all results as Markdown."""

from __future__ import annotations

from sfedhp.paper.content import EXPLANATION, PICTURES, Content, anchor, head_of, short_name
from sfedhp.paper.figures import title
from sfedhp.paper.studies import OTHER_READING, READINGS
from sfedhp.paper.tables import TextTable
from sfedhp.paper.verdicts import RULE, Claim


def to_markdown(page: Content) -> str:
    """The page; drawings are files in images/."""
    parts = [
        "# The paper and this implementation, side by side",
        "Written from the records in `results/` by:",
        "```sh\nsfedhp reproduce --show --markdown docs/reproduction.md\n```",
        "## In two minutes",
        page.coverage,
        _summary(page),
        *(_table(table) for table in page.signs),
        *(f"![{words}](images/{name}.svg)" for name, words in PICTURES.items() if page.pictures.get(name)),
        "## Three surprises",
        *(
            part
            for each in page.surprises
            for part in (f"### {each.title}", each.text, *_image(each.picture, each.title, each.drawing))
        ),
        "## How to read this page",
        EXPLANATION,
        "The paper's text can be read in several ways. Its numbers fit the first one best, so claims "
        f"are judged by that reading. The verdicts under `{OTHER_READING}` are shown next to them:",
        "\n".join(f"- **{name}**: {words}" for name, words in READINGS.items()),
        RULE,
        *([page.made_on] if page.made_on else []),
        "## The claims, one by one",
        *(_claim(claim, beside) for claim, beside in zip(page.claims, page.claims_beside, strict=True)),
        "## Tables",
        *(_table(table) for table in page.tables),
        "## Figures",
        *(
            part
            for name, drawing in page.figures.items()
            for part in (f"### {title(name)}", *(_image(name, title(name), drawing) or ["Not run yet."]))
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _image(name: str, words: str, drawing: str) -> list[str]:
    return [f"![{words}](images/{name}.svg)"] if drawing else []


def _summary(page: Content) -> str:
    rows = [
        f"| claim | verdict | number | {OTHER_READING} | cells |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| [{claim.name}](#{anchor(claim.title)}) | **{claim.verdict}** | {claim.number} "
            f"| {beside.verdict} | "
            f"{', '.join(f'[{short_name(place)}](#{anchor(head_of(place))})' for place in claim.places)} |"
            for claim, beside in zip(page.claims, page.claims_beside, strict=True)
        ),
    ]
    return "\n".join(rows)


def _claim(claim: Claim, beside: Claim) -> str:
    lines = [
        f"### {claim.title}",
        "",
        f"> {claim.statement}",
        "",
        f"**{claim.verdict}** ({OTHER_READING}: {beside.verdict}). {claim.rule}",
        "",
        *(f"- {finding}" for finding in claim.findings),
    ]
    if any(cell.outcome != "not run yet" for cell in claim.cells):
        lines += [f"- {cell.line()}" for cell in claim.cells]
    return "\n".join(lines)


def _table(table: TextTable) -> str:
    columns = range(len(table.heads))
    rows = [
        f"### {table.title}",
        "",
        f"| {' | '.join(table.heads)} |",
        f"|{''.join(' --- |' if table.is_text(column) else ' ---: |' for column in columns)}",
        *(f"| {' | '.join(line)} |" for line in table.lines),
    ]
    return "\n".join([*rows, *(("", table.note) if table.note else ())])

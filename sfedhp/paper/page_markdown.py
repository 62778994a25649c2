"""The page of all results as Markdown."""

from __future__ import annotations

import re

from sfedhp.paper.content import Content
from sfedhp.paper.figures import title
from sfedhp.paper.studies import MAIN_READING, OTHER_READING, READINGS
from sfedhp.paper.tables import TextTable, title_of
from sfedhp.paper.verdicts import RULE, Claim

EXPLANATION = (
    "Accuracies are in percent. PM is the accuracy of the personalized models, GM that of the global model, "
    "both on each client's own test rows. Claims are judged by the mean of the last five evaluations. "
    "“Last” is the last round, “validated” the round chosen on validation data, “best” the best evaluated "
    "round. The best round is chosen on the test data, so its accuracy is too optimistic. It is likely the "
    "paper's convention, so gaps to the paper compare the best round. Bands around curves are one standard "
    "deviation over seeds."
)
PICTURES = {
    "cell-map": "Ours − paper, cell by cell",
    "table-curves": "Accuracy of the global models, round by round",
}


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


def short_name(place: str) -> str:
    """A table or figure in two letters: T1, F3."""
    return re.sub(r"^(table|fig)(\d)$", lambda found: {"table": "T", "fig": "F"}[found[1]] + found[2], place)


def head_of(place: str) -> str:
    """The heading of a table or figure under the main reading."""
    return title_of(place, MAIN_READING) if place.startswith("table") else title(place)


def anchor(head: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")


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

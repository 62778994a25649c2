"""What the page of all results shows, as HTML and as Markdown: its parts, texts and anchors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sfedhp.paper.figures import title
from sfedhp.paper.studies import MAIN_READING
from sfedhp.paper.surprises import Surprise
from sfedhp.paper.tables import TextTable, title_of
from sfedhp.paper.verdicts import Claim

EXPLANATION: Final = (
    "Accuracies are in percent. PM is the accuracy of the personalized models, GM that of the global model, "
    "both on each client's own test rows. Claims are judged by the mean of the last five evaluations. "
    "“Last” is the last round, “validated” the round chosen on validation data, “best” the best evaluated "
    "round. The best round is chosen on the test data, so its accuracy is too optimistic. It is likely the "
    "paper's convention, so gaps to the paper compare the best round. Bands around curves are one standard "
    "deviation over seeds."
)
PICTURES: Final = {  # titles by file name
    "cell-map": "Ours − paper, cell by cell",
    "table-curves": "Accuracy of the global models, round by round",
}


@dataclass(frozen=True)
class Content:
    """The parts of the page, in their order."""

    claims: Sequence[Claim]
    claims_beside: Sequence[Claim]  # the same, by the other reading
    coverage: str  # a sentence on what was run
    tiles: Sequence[tuple[str, str]]  # numbers to remember, each with what it is
    signs: Sequence[TextTable]
    pictures: Mapping[str, str]  # SVG of the cell map and the curves, by file name
    surprises: Sequence[Surprise]
    tables: Sequence[TextTable]
    figures: Mapping[str, str]  # SVG by the name of the study; empty where nothing was run yet
    made_on: str = ""  # a sentence on the devices that made the runs


def short_name(place: str) -> str:
    """A table or figure in two letters: T1, F3."""
    return re.sub(r"^(table|fig)(\d)$", lambda found: {"table": "T", "fig": "F"}[found[1]] + found[2], place)


def head_of(place: str) -> str:
    """The heading of a table or figure under the main reading."""
    return title_of(place, MAIN_READING) if place.startswith("table") else title(place)


def anchor(head: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")

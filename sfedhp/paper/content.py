"""What the page of all results shows, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfedhp.paper.surprises import Surprise
from sfedhp.paper.tables import TextTable
from sfedhp.paper.verdicts import Claim


@dataclass(frozen=True)
class Content:
    """What the page shows, in its order."""

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

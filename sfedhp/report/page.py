"""The page of runs: one self-contained HTML file that loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from sfedhp._version import __version__
from sfedhp.report import config_section, content, sections
from sfedhp.report.drawing import Drawing
from sfedhp.report.facts import Facts
from sfedhp.report.html import figures, paragraph, section
from sfedhp.report.newcomers import newcomers
from sfedhp.report.styles import chart_css, palette_css
from sfedhp.runs.benefit import benefit_of

NAME = "report.html"


@dataclass(frozen=True)
class Content:
    """The part of a page that changes while its runs continue."""

    html: str  # inside <main>
    readouts: dict[str, Any]  # by the id of a chart: its numbers


@dataclass(frozen=True)
class Live:
    """The settings of a live page."""

    address: str  # where to ask for new content
    every: float  # seconds between two requests
    version: str  # of the content


def render(facts: Facts, live: Live | None = None) -> str:
    """The whole HTML of a page about these runs."""
    return wrap(title_of(facts), render_content(facts), live)


def title_of(facts: Facts) -> str:
    """The title of a page."""
    if len(facts.runs) == 1:
        return facts.runs[0].name
    above = {run.record.folder.absolute().parent for run in facts.runs}
    return above.pop().name if len(above) == 1 else f"{len(facts.runs)} runs"


def render_content(facts: Facts, members: str = "") -> Content:
    """The HTML inside <main>, with the numbers of its charts.

    Args:
        facts: of the runs.
        members: HTML about the members of deployed federations, for a live page.
    """
    several = len(facts.runs) > 1
    curves, times = content.curves(facts), content.times(facts)
    traffic = [*content.density(facts), *content.traffic(facts)]
    first = sections.chosen_first(facts)
    parts = [
        paragraph(facts.sentence, "sentence"),
        members,
        "" if several else sections.figures_of_run(facts.runs[0]),
        *(f'<div class="helps">{paragraph(text)}</div>' for text in _benefits(facts)),
        sections.hints(facts),
        section("Results", sections.runs_table(facts)) if several else "",
        section("Curves", figures(curves)) if several else "",
        section("The federation", _picker(facts, first), *_trees(facts, first)),
        "" if several else section("Curves", figures(curves)),
        *sections.details(facts, first),
        newcomers(facts),
        section("Density, bytes and time", figures([*traffic, *times], "stack")),
        f'<div class="columns">{section("Config", config_section.config(facts))}'
        f"{section('Environment', config_section.environment(facts))}</div>",
    ]
    readouts = _readouts([*curves, *traffic, *times])
    for number, run in enumerate(sections.detailed(facts)):
        ranked = content.clients_chart(run)
        readouts |= _readouts([ranked] if ranked else [], f"run{number}-" if several else "")
    return Content("".join(parts), readouts)


def wrap(title: str, inner: Content, live: Live | None = None) -> str:
    """A whole page around its content."""
    style, script = palette_css() + chart_css() + asset("page.css"), asset("page.js")
    policy = [
        "default-src 'none'",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(script)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if live else []),
    ]
    body = "<body>"
    if live:
        body = (
            f'<body data-live="{escape(live.address)}" data-every="{live.every * 1000:.0f}" '
            f'data-version="{escape(live.version)}">'
        )
    state = '<p id="live-state" class="soft" role="status">live</p>' if live else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{escape(title)} – sfedhp</title><style>{style}</style></head>\n{body}"
        f'<div class="page"><header><h1>{escape(title)}</h1>'
        '<button type="button" class="theme" hidden>light / dark</button></header>'
        f"{state}<main>{inner.html}</main>"
        f"<footer>Written by sfedhp {escape(__version__)}. PM, EM and GM are the figures of personal, "
        "edge and global models on each client's own test rows.</footer></div>"
        '<div id="tip" role="tooltip" hidden></div>\n'
        f'<script type="application/json" id="readouts">{_json(inner.readouts)}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


def asset(name: str) -> str:
    """A file of the package's assets."""
    return (files("sfedhp.report") / "assets" / name).read_text(encoding="utf-8")


def _benefits(facts: Facts) -> list[str]:
    if len(facts.runs) > 1:
        return benefit_of([run.record for run in facts.runs]).sentences()
    text = sections.benefit(facts.runs[0])
    return [text] if text else []


def _picker(facts: Facts, first: int) -> str:
    """The choice of the run whose clients are shown, if there are several; `first` is chosen at first."""
    if len(facts.runs) == 1:
        return ""
    shown = sections.detailed(facts)
    options = "".join(
        f'<option value="{number}"{" selected" if number == first else ""}>{escape(run.name)}</option>'
        for number, run in enumerate(shown)
    )
    left = len(facts.runs) - len(shown)
    note = (
        f"{left} further runs are not drawn here: write a page of each with `sfedhp report`." if left else ""
    )
    return (
        f'<p><label>Clients and classes of the run <select class="picker">{options}</select></label></p>'
        + (paragraph(note, "note") if note else "")
    )


def _trees(facts: Facts, first: int) -> list[str]:
    if len(facts.runs) == 1:
        return [sections.trees(facts.runs[0])]
    return [
        f'<div data-run="{number}"{"" if number == first else " hidden"}>'
        f"{sections.trees(run, f'run{number}-')}</div>"
        for number, run in enumerate(sections.detailed(facts))
    ]


def _readouts(drawings: Iterable[Drawing], prefix: str = "") -> dict[str, Any]:
    """The numbers of charts by the charts' ids, for the page's script."""
    return {
        f"{prefix}{drawing.name}": {
            "places": [round(place, 1) for place in drawing.readout.places],
            "titles": drawing.readout.titles,
            "top": drawing.readout.top,
            "bottom": drawing.readout.bottom,
            "digits": drawing.readout.digits,
            "unit": drawing.readout.unit,
            "series": [
                {
                    "name": each.name,
                    "values": _rounded(each.values),
                    **({} if each.deviations is None else {"deviations": _rounded(each.deviations)}),
                }
                for each in drawing.readout.series
            ],
        }
        for drawing in drawings
        if drawing.readout is not None
    }


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 6) for value in values]


def _json(values: Any) -> str:
    """JSON inside a <script>: nothing in it can end the element."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    """The hash by which the page's policy allows this style or script and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

import sys
from dataclasses import replace

import pytest

from sfedhp.core.errors import InputError
from sfedhp.paper import figures
from sfedhp.paper.curves import Curve
from sfedhp.paper.page import Page
from sfedhp.paper.tables import TextTable, claims_table
from sfedhp.paper.verdicts import Claim

CLAIM = Claim("A & B.", "A > B.", "holds partly", ("on <one>",))
TABLE = TextTable("Table 2", ("cell", "paper"), (("fedavg GM", "91.63"),), "a note")
CURVE = Curve("sfedhp sparse", "sparse", {"round": [20, 40], "gm": [1.0, 2.0], "formula": [1e6, 2e6]})


def test_the_page_stands_alone_and_is_escaped():
    text = Page([CLAIM], [TABLE], ["a line"], {"fig3": figures.draw("fig3", [CURVE])}).html()
    assert "A &amp; B." in text
    assert "on &lt;one&gt;" in text
    assert 'class="claim partly"' in text
    assert "<td>91.63</td>" in text
    assert "a note" in text
    assert "<svg" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")


def test_markdown_has_the_same():
    text = Page([CLAIM], [TABLE], ["a line"], {"fig3": "<svg/>"}).markdown()
    assert "**holds partly.** A > B." in text
    assert "| fedavg GM | 91.63 |" in text
    assert "![Figure 3: accuracy, density and communication, MNIST, balanced](images/fig3.svg)" in text
    assert claims_table([CLAIM]).lines == (("A & B.", "holds partly", "A > B."),)


def test_a_figure_is_the_same_text_from_the_same_records():
    assert figures.draw("fig3", [CURVE]) == figures.draw("fig3", [CURVE])
    assert "sfedhp sparse" in figures.draw("fig5", [CURVE])
    assert set(figures.PANELS) == set(figures.TITLES)


def test_a_few_curves_of_several_seeds_have_bands():
    seeds = tuple({**CURVE.columns, "gm": [1.0 + seed, 2.0]} for seed in range(3))
    curve = replace(CURVE, runs=dict(enumerate(seeds)))
    assert "PolyCollection" not in figures.draw("fig5", [CURVE])
    assert "PolyCollection" in figures.draw("fig5", [curve])
    assert "PolyCollection" not in figures.draw("fig5", [curve] * 6)


def test_drawing_without_the_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"sfedhp\[report\]"):
        figures.draw("fig2", [CURVE])

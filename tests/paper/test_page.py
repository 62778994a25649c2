import re
import sys
from dataclasses import replace

import pytest

from sfedhp.core.errors import InputError
from sfedhp.paper import figures, pictures
from sfedhp.paper.curves import Curve
from sfedhp.paper.page import Page, devices
from sfedhp.paper.rows import rows
from sfedhp.paper.surprises import Surprise
from sfedhp.paper.tables import NOT_RUN, TextTable, claims_table
from sfedhp.paper.verdicts import compare, judge_cells
from tests.support.small_experiments import experiment

CELL = compare("on <one>", {0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.0, 1: 1.0, 2: 1.0})
CLAIM = judge_cells("A claim", "A & B.", "A > B.", ["table1", "fig3"], [CELL, CELL])
OPEN = judge_cells("Another", "C.", "C.", ["fig3"], [compare("c", None, None)])
TABLE = TextTable("Table 1: global models, balanced", ("cell", "paper"), (("FedAvg GM", "91.63"),), "a note")
CURVE = Curve("sfedhp sparse", "sparse", {"round": [20, 40], "gm": [1.0, 2.0], "formula": [1e6, 2e6]})


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(
        claims=[CLAIM, OPEN],
        claims_beside=[OPEN, CLAIM],
        coverage="One of two was run.",
        tiles=[("1 of 2", "cells")],
        signs=[TextTable("Ours − paper", ("method", "run"), (("sFedHP", "1 of 2"),))],
        pictures={"cell-map": "<svg>map</svg>", "table-curves": "<svg>curves</svg>"},
        surprises=[
            Surprise("A surprise", "So & so.", "even-k", "<svg>even</svg>"),
            Surprise("None", "Not run.", "x", ""),
        ],
        tables=[TABLE],
        figures={"fig3": figures.draw("fig3", [CURVE]), "fig4": ""},
    )


def test_the_page_needs_no_other_file_and_is_escaped(page):
    text = page.html()
    assert "A &amp; B." in text
    assert "on &lt;one&gt;" in text
    assert '<span class="pill holds">holds</span>' in text
    assert "<td>91.63</td>" in text
    assert "a note" in text
    assert "<svg>map</svg>" in text
    assert "So &amp; so." in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")


def test_what_is_not_for_two_minutes_is_folded_and_links_lead_to_it(page):
    text = page.html()
    front, details = text.split("<h2>The claims, one by one</h2>")
    assert "<details" not in front
    assert details.count("<details") == 5  # two claims, a table and two figures
    for target in re.findall(r'href="#([^"]+)"', front):
        assert f'id="{target}"' in details, target


def test_markdown_has_the_same(page):
    text = page.markdown()
    number = "true in 2 of 2 comparisons; differences +1.0 to +1.0 points"
    assert f"| [A claim](#a-claim) | **holds** | {number} | not run yet |" in text
    assert "[T1](#table-1-global-models-balanced), [F3](#figure-3-accuracy" in text
    assert "> A & B." in text
    assert "- on <one>: +1.00 ± 0.25 points (true, p = 0.007)" in text
    assert "| FedAvg GM | 91.63 |" in text
    assert "![Figure 3: accuracy, density and communication, MNIST, balanced](images/fig3.svg)" in text
    assert "### Figure 4: the effect of λ, balanced\n\nNot run yet." in text
    assert text.index("## In two minutes") < text.index("## Three surprises") < text.index("## Tables")


def test_drawings_are_files_beside_markdown(page, tmp_path):
    page.write_markdown(tmp_path / "page.md")
    names = sorted(path.stem for path in (tmp_path / "images").iterdir())
    assert names == ["cell-map", "even-k", "fig3", "table-curves"]
    for name in re.findall(r"\(images/(.*?)\.svg\)", (tmp_path / "page.md").read_text(encoding="utf-8")):
        assert name in names


def test_the_terminal_has_the_verdicts_of_both_readings():
    table = claims_table([CLAIM, OPEN], [OPEN, CLAIM])
    assert table.heads[-1] == "neighbouring"
    assert table.lines == (
        ("A claim", "holds", "true in 2 of 2 comparisons; differences +1.0 to +1.0 points", "not run yet"),
        ("Another", "not run yet", "1 of 1 not run yet", "holds"),
    )


def test_the_page_says_which_device_made_the_runs():
    made = {"fig2": {"cpu": 12}, "table2": {"NVIDIA H200": 40, "cpu": 6}, "fig3": {}}
    assert devices(made) == (
        "Runs by the device that made them: 40 on NVIDIA H200; 18 on a CPU: fig2, table2 (6 of 46)."
    )
    assert devices({"fig3": {}}) == ""


def test_a_figure_is_the_same_text_from_the_same_records():
    assert figures.draw("fig3", [CURVE]) == figures.draw("fig3", [CURVE])
    assert "sFedHP sparse" in figures.draw("fig5-neighbouring", [CURVE])
    assert set(figures.PANELS) == set(figures.TITLES)
    assert figures.title("fig4-neighbouring") == "Figure 4: the effect of λ, neighbouring"


def test_a_few_curves_of_several_seeds_have_bands():
    seeds = tuple({**CURVE.columns, "gm": [1.0 + seed, 2.0]} for seed in range(3))
    curve = replace(CURVE, runs=dict(enumerate(seeds)))
    assert "PolyCollection" not in figures.draw("fig5", [CURVE])
    assert "PolyCollection" in figures.draw("fig5", [curve])
    assert "PolyCollection" not in figures.draw("fig5", [curve] * 6)


def test_the_cell_map_has_the_gap_of_every_cell_that_was_run(study, made):
    one = study(sfedhp=[experiment(client_proximity=20.0, edge_proximity=20.0)])
    found = rows([one], [made(one, "sfedhp", 0, pm=[97.0], gm=[90.0])])
    drawn = pictures.cell_map(found)
    assert [f">{gap}<" in drawn for gap in ("-0.8", "-4.9")] == [True, True]
    assert "+" not in "".join(re.findall(r">([+-]\d+\.\d)<", pictures.cell_map([])))
    # A picture of another reading has none of these.
    assert ">-4.9<" not in pictures.cell_map(found, "neighbouring")


def test_curves_of_tables_that_were_not_run_say_so():
    curve = Curve("fedavg", "", {"round": [20.0, 40.0], "gm": [80.0, 85.0]})
    drawn = pictures.table_curves({"table2": [curve]})
    assert drawn.count(f">{NOT_RUN}<") == 5
    assert ">FedAvg<" in drawn


def test_drawing_without_the_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"sfedhp\[report\]"):
        figures.draw("fig2", [CURVE])

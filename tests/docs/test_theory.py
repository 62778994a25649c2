"""What docs/theory.md and docs/personalize.md say is what the tools and the code give."""

import re

import pytest

from sfedhp.theory.curvature import BatchCurvature
from tests.support.paths import ROOT
from tests.support.tools import load_tool

PAGE = (ROOT / "docs/theory.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| (mnist|fmnist|cifar10) (\d) \| (\w+) \| ([\d.]+), ([\d.]+)( \(normalized\))? \|.*$", PAGE, re.M
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:3]))
def test_the_alarms_follow_from_the_curvatures_in_the_table(row):
    dataset, setting, scale, median, worst, normalized = row
    curvature = BatchCurvature(float(median), float(worst), bool(normalized))
    assert load_tool("alarms").row(dataset, int(setting), scale, curvature) in PAGE.splitlines()


def test_every_table_is_there_in_both_scalings_and_only_standardized_pixels_are_warned_of():
    assert len(ROWS) == 12
    lines = [line.split("|") for line in PAGE.splitlines() if re.match(r"\| (mnist|fmnist|cifar10) \d", line)]
    for cells in lines:
        name, scale, alarms = cells[1].strip(), cells[2].strip(), cells[4].strip()
        assert scale == "per_pixel" or alarms == "–"
        if name.startswith("mnist") and scale == "per_pixel":
            assert "pfedme λ = 30" in alarms


def test_all_102_cells_are_judged():
    cells = load_tool("alarms").cells()
    assert len(cells) == 102
    assert [cell.name for cell in cells if cell.collapsed] == ["pfedme λ = 30"] * 2


def test_the_table_of_floors_is_the_tools():
    assert load_tool("theorems").table() in PAGE


@pytest.mark.parametrize("name", ["theorem-1", "theorem-2", "floor", "balls", "inner"])
def test_every_plot_is_on_the_page(name):
    assert name in load_tool("theorems").PLOTS
    assert f"images/theory-{name}.svg" in PAGE
    assert (ROOT / f"docs/images/theory-{name}.svg").exists()


@pytest.mark.slow
def test_the_plots_are_drawn_the_same_again(tmp_path):
    theorems = load_tool("theorems")
    for name in theorems.PLOTS:
        theorems.draw(name, tmp_path)
        file = f"theory-{name}.svg"
        assert (tmp_path / file).read_text() == (ROOT / "docs/images" / file).read_text(), name
